// The moment at which nothing runs on memory any more. Internal.
#pragma once

#include <optional>

#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::checkpoint {

// Waits for `idle`, or without it for everything on the device. Errors: the driver's.
// Cost: as fence::wait, or one call and the context switch.
status wait_until_idle(const device &d, const std::optional<fence> &idle = std::nullopt);

}  // namespace stillmap::checkpoint
