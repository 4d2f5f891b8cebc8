// What the addresses of an allocator are at one moment: data to draw, to write down and to compare.
// Taken by caching_allocator::map(); written by heap_report.h. Values only: holds no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stillmap/vmm/stream.h"
#include "stillmap/vmm/units.h"

namespace stillmap {

enum class heap_part : std::uint8_t {
  live,          // one block that is handed out
  cached,        // one freed block, kept as it is for the next request of its size
  pending_free,  // one freed block that other streams may still be using
  free,          // memory without a block
  uncommitted,   // addresses without memory
  unmapping,     // pages that have gone elsewhere and are still mapped here
  aliased,       // the same, and they stay mapped here, to come back without a driver call
};
inline constexpr std::size_t heap_parts = 7;
const char *name_of(heap_part part);  // "live", ...
// live, cached, held and free are memory; the other parts are addresses only.
constexpr bool has_memory(heap_part part) {
  return part <= heap_part::free;
}

struct heap_extent {
  virtual_range range;
  heap_part part = heap_part::uncommitted;
  std::size_t requested = 0;  // live: bytes as asked for; the rest of the range is rounding
  bool in_slab = false;       // cut from a slab: it cannot leave before its neighbours are free
  bool operator==(const heap_extent &) const = default;
};

struct heap_map {
  struct arena {
    std::uint64_t id = 0;
    std::uint64_t pool = 0;  // the private pool whose it is, or was; 0: none
    stream_ref stream;
    std::string name;                     // for people; empty: the stream's
    std::vector<heap_extent> extents;     // in address order within each reservation
    std::vector<virtual_range> reserved;  // each reserved (or allocated) from the driver at once
  };
  std::size_t page_bytes = 0;  // what moves is whole pages of so many bytes; 0: nothing moves
  std::vector<arena> arenas;
};

// Sums over a map. Bytes.
struct heap_figures {
  std::size_t live = 0, cached = 0, pending_free = 0, free = 0;
  std::size_t committed = 0;  // the sum of those
  std::size_t uncommitted = 0, unmapping = 0, aliased = 0;
  std::size_t reserved = 0;  // the sum of all
  std::size_t requested = 0;
  std::size_t blocks = 0;            // live
  std::size_t free_pieces = 0;       // stretches of free and cached memory
  std::size_t largest_free = 0;      // of those
  std::size_t free_whole_pages = 0;  // free bytes in pages with nothing else in them: they can move
  std::size_t page_edges = 0;        // other free bytes: they can only be reused where they are
};
heap_figures figures_of(const heap_map::arena &a, std::size_t page_bytes);
heap_figures figures_of(const heap_map &m);

}  // namespace stillmap
