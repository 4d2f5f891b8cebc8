// Waits until no queued device work can access the memory.
#pragma once

#include <optional>

#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::checkpoint {

// Waits for `idle` or, without it, for everything that is queued on the device.
// Requires: without `idle`, no stream captures a graph.
// Errors: busy (a capture was noticed, of a blocking stream or a default one, and is intact), the
//         driver's.
// Cost:   as fence::wait, or two capture queries, one cuCtxSynchronize and the context switch.
status wait_until_idle(const device &d, const std::optional<fence> &idle = std::nullopt);

}  // namespace stillmap::checkpoint
