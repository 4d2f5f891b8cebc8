// Blocks that the program freed while a stream captured a graph, when nothing could be waited for.
#pragma once

#include <atomic>

#include "preload/functions/abi.h"
#include "stillmap/allocators/caching_allocator.h"

namespace stillmap::preload {

// As cuMemFree returns it: invalid_value (it is freed already), out_of_memory (the host has none for it).
driver_code free_later(caching_allocator &heap, void *block) noexcept;

// Frees them. Requires: nothing queued uses them.
void free_pending() noexcept;

extern std::atomic<bool> blocks_pending;
inline bool any_pending() noexcept {
  return blocks_pending.load(std::memory_order_acquire);
}

}  // namespace stillmap::preload
