// The largest figures of an allocator: since the program has reset that attribute of the default pool, and ever.
#pragma once

#include <algorithm>
#include <cstdint>

#include "stillmap/allocators/caching_allocator.h"

namespace stillmap::preload {

struct memory_peaks {
  std::uint64_t live = 0, committed = 0;  // bytes

  void raise(const memory_peaks &other) noexcept {
    live = std::max(live, other.live);
    committed = std::max(committed, other.committed);
  }
};

// What a peak is counted from. The allocator has one start for all.
enum class peaks_since : std::uint8_t { used_reset, reserved_reset, start, count };

memory_peaks peaks_of(caching_allocator &heap, peaks_since since) noexcept;

// Counts these peaks from now on; the others stay.
void reset_peaks(caching_allocator &heap, peaks_since since) noexcept;

}  // namespace stillmap::preload
