// The device of a thread, changed.
#pragma once

#include "hostcuda/cudart/src/runtime.h"

namespace cudart {

// Makes the primary context of `device` current, and the device this thread's.
cudaError_t bind_device(int device);

// Destroys the primary context of a device with all that is in it.
cudaError_t reset_device(int device);

}  // namespace cudart
