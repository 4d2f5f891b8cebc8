// Whether a call that may have queued work on the device has ended since the flag was last taken.
#pragma once

#include <atomic>

#include "preload/functions/abi.h"

namespace stillmap::preload {

STILLMAP_FOR_SERVICE extern std::atomic<bool> work_may_be_queued;

inline void note_work() noexcept {
  if (!work_may_be_queued.load(std::memory_order_relaxed))
    work_may_be_queued.store(true, std::memory_order_release);
}

}  // namespace stillmap::preload
