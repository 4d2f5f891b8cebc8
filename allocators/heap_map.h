// The state of every address of an allocator at one moment, as data to draw, to write to a file and
// to compare. caching_allocator::map() returns it; report/heap_report.h writes it. Values only: a
// map owns no device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stillmap/vmm/base/units.h"
#include "stillmap/vmm/stream.h"

namespace stillmap {

enum class heap_part : std::uint8_t {
  live,          // one allocated block
  cached,        // one freed block, kept whole for the next request of its size
  pending_free,  // one freed block that queued work of other streams may still use
  free,          // physical memory without a block
  uncommitted,   // addresses without physical memory
  unmapping,     // addresses whose pages have moved; the old mapping is not undone yet
  aliased,       // addresses that stay mapped to pages in use at another address
};
inline constexpr std::size_t heap_parts = 7;
const char *name_of(heap_part part);  // "live", ...
// Whether the part counts as physical memory: live, cached, pending_free and free do. The other
// parts are addresses only.
constexpr bool has_memory(heap_part part) {
  return part <= heap_part::free;
}

// A range of addresses in one state.
struct heap_extent {
  virtual_range range;
  heap_part part = heap_part::uncommitted;
  std::size_t requested = 0;  // live: bytes requested; the rest of the range is rounding
  bool in_slab = false;       // part of a slab, which is released only as a whole
  bool operator==(const heap_extent &) const = default;
};

struct heap_map {
  struct arena {
    std::uint64_t id = 0;
    std::uint64_t pool = 0;  // the private pool that owns the arena, or did; 0: none
    stream_ref stream;
    std::string name;                     // a label for reports; empty: the stream's
    std::vector<heap_extent> extents;     // in address order within each reservation
    std::vector<virtual_range> reserved;  // each reserved or allocated from the driver by one call
  };
  std::size_t page_bytes = 0;  // the unit in which memory moves; 0: memory does not move
  std::vector<arena> arenas;
};

// Sums over a map, in bytes.
struct heap_figures {
  std::size_t live = 0, cached = 0, pending_free = 0, free = 0;
  std::size_t committed = 0;  // the sum of those four
  std::size_t uncommitted = 0, unmapping = 0, aliased = 0;
  std::size_t reserved = 0;  // the sum of all seven
  std::size_t requested = 0;
  std::size_t blocks = 0;            // number of live blocks
  std::size_t free_pieces = 0;       // number of contiguous ranges of free and cached memory
  std::size_t largest_free = 0;      // the largest of those
  std::size_t free_whole_pages = 0;  // free bytes in pages without any block; these pages can move
  std::size_t page_edges = 0;        // free bytes in pages that also hold blocks
};
heap_figures figures_of(const heap_map::arena &a, std::size_t page_bytes);
heap_figures figures_of(const heap_map &m);

}  // namespace stillmap
