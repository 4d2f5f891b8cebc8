// Statistics and maps of an allocator. Internal.
#pragma once

#include <cstddef>
#include <vector>

#include "stillmap/allocators/allocator_types.h"
#include "stillmap/allocators/engine/heap.h"
#include "stillmap/allocators/engine/memory_source.h"
#include "stillmap/allocators/heap_map.h"

namespace stillmap {

// Does not wait for growth. `created_ahead`: memory_source::created_ahead().
caching_allocator_stats stats_of(const heap &h, std::size_t created_ahead);
void reset_peaks(heap &h) STILLMAP_EXCLUDES(growth);
// May run out of host memory.
heap_map map_of(heap &h) STILLMAP_EXCLUDES(growth);
// Why free memory stayed. `giving`: the arenas that could release memory.
release_report report_release(const heap &h, memory_source &source, std::size_t released,
                              const std::vector<arena *> &giving) STILLMAP_REQUIRES(growth);

}  // namespace stillmap
