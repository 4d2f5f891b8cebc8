// An extent: a contiguous range of an arena's addresses in one state; and the store that recycles
// such nodes.
//
// States: uncommitted -> free <-> live, once pages are mapped. free -> unmapping -> uncommitted:
//         whole pages taken for use in another arena or released; the second step follows when the
//         old mapping is undone. free <-> aliased: whole pages used at another address, of this
//         arena or of another, which stay mapped here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "stillmap/allocators/engine/tlsf_index.h"
#include "stillmap/vmm/base/units.h"

namespace stillmap {

struct reservation_pages;
struct slab;

enum class extent_state : std::uint8_t {
  uncommitted,  // whole pages of addresses without physical memory
  free,         // committed memory without a block
  live,         // an allocated or cached block, a slab, or memory that is being committed
  unmapping,    // whole pages whose mapping is being undone
  aliased,      // whole pages that stay mapped here but are used at another address
};

// Where in an arena small and large blocks lie: each has addresses of its own, so that a small block
// that stays does not keep a page from a large one.
enum class address_zone : std::uint8_t { large, small };

// The members that allocate and free touch come first and fill one cache line.
struct alignas(64) extent {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  size_links<extent> by_size;  // of free, uncommitted and cached ones
  std::uint64_t hash = 0;      // of its range, once it was in use: loop_memory.h
  std::uint16_t slack = 0;     // rounding of the allocated block, in bytes
  extent_state state = extent_state::uncommitted;
  bool allocated = false;     // the program holds the block
  bool cross_stream = false;  // record_use was called
  bool cached = false;        // live, not allocated: kept for the next request of its size
  bool in_table = false;      // entered in the block table

  extent *previous = nullptr;  // neighbours by address, in the same reservation
  extent *next = nullptr;
  reservation_pages *in = nullptr;          // of its reservation
  address_zone zone = address_zone::large;  // of its reservation
  slab *blocks = nullptr;                   // the slab that divides it, also while it is cached

  std::uint64_t end() const { return begin + bytes; }
  // Memory that no block holds.
  bool is_unused() const { return state == extent_state::free || cached; }
  bool contains(std::uint64_t address) const { return address - begin < bytes; }
  virtual_range range() const { return {device_address(begin), static_cast<std::size_t>(bytes)}; }
};

// Allocates extents in chunks and recycles them, so that split and merge need host memory only when
// there are more extents than ever before. Threads: externally synchronised.
class extent_store {
 public:
  // Afterwards `n` extents can be created. May run out of host memory, and then changes nothing.
  void reserve(std::size_t n) {
    while (spare_ < n) refill();
  }
  // Requires: reserved.
  extent *create() noexcept {
    --spare_;
    extent *const s = free_;
    free_ = s->next;
    return new (s) extent;  // faster than assigning extent{}, which clears the cache line first
  }
  void destroy(extent *s) noexcept {
    s->bytes = s->begin = 0;  // a stale pointer finds an empty extent
    s->next = free_;
    free_ = s;
    ++spare_;
  }
  std::size_t bytes() const { return created_ * sizeof(extent); }

 private:
  // A stream may need few; the chunks double.
  static constexpr std::size_t first_chunk = 16, largest_chunk = 256;
  [[gnu::noinline]] void refill() {
    const std::size_t chunk = std::clamp(created_, first_chunk, largest_chunk);
    chunks_.push_back(std::make_unique<extent[]>(chunk));
    created_ += chunk;
    for (std::size_t i = chunk; i-- > 0;) destroy(&chunks_.back()[i]);
  }
  std::size_t created_ = 0;
  extent *free_ = nullptr;
  std::size_t spare_ = 0;  // extents in the list
  std::vector<std::unique_ptr<extent[]>> chunks_;
};

}  // namespace stillmap
