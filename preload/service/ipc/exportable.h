// Whether the pages of a device are created so that other processes can map them.
#pragma once

#include "stillmap/vmm/device.h"

namespace stillmap::preload {

// As STILLMAP_PRELOAD_IPC says, where the device can. Without the variable: on a GPU, where such a page costs nothing
// before it is exported; on the simulator, where each takes a file descriptor, only if there are enough of them.
bool pages_are_exportable(const device &d);

}  // namespace stillmap::preload
