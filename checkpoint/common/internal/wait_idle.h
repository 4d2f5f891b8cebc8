// Waits until no queued device work can access the memory.
#pragma once

#include <optional>

#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::checkpoint {

// Waits for `idle` or, without it, for everything that is queued on the device.
// Errors: the driver's.
// Cost:   as fence::wait, or one cuCtxSynchronize and the context switch.
status wait_until_idle(const device &d, const std::optional<fence> &idle = std::nullopt);

}  // namespace stillmap::checkpoint
