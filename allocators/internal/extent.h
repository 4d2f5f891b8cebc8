// A stretch of an arena's addresses, and where such nodes come from.
// States: uncommitted -> (pages mapped) -> free <-> live; whole pages of a free one that are taken for
//         use elsewhere or given back: free -> unmapping -> uncommitted, once the old mapping is undone;
//         or free <-> aliased, when they stay mapped here too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "stillmap/allocators/internal/tlsf_index.h"
#include "stillmap/vmm/units.h"

namespace stillmap {

struct size_bin;

// A chain of places that wait for the same thing; each is in at most one. places.h
struct wait_list {
  size_bin *of = nullptr;  // the first; none: the chain is empty
  std::uint32_t index = 0;
};

enum class extent_state : std::uint8_t {
  uncommitted,  // whole pages of addresses with nothing behind them
  free,         // committed, nobody's
  live,         // handed out, cut into small blocks, kept for quick reuse, or being grown
  unmapping,    // whole pages whose mapping goes: unusable until it is gone
  aliased,      // whole pages that are mapped here but used at another address of the arena
};

// What handing out and taking back touches comes first, and fills one line of the cache.
struct alignas(64) extent {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  size_links<extent> by_size;
  size_bin *bin = nullptr;  // those of its size; none: it has no place
  std::uint32_t slot = 0;   // its number among them
  std::uint16_t slack = 0;  // bytes handed out that were not asked for
  extent_state state = extent_state::uncommitted;
  bool allocated = false;       // somebody outside holds the address
  bool cross_stream = false;    // record_use was called
  bool cached = false;          // live for the books, nobody's: ready for the same size
  bool in_table = false;        // its address leads to it
  bool awaited = false;         // `waiting` may have places
  std::uint32_t bin_index = 0;  // where it is among the free ones of about its size

  extent *previous = nullptr;  // neighbours by address, of the same reservation
  extent *next = nullptr;
  wait_list waiting;  // places that this block, while it lives, is in the way of

  std::uint64_t end() const { return begin + bytes; }
  virtual_range range() const { return {device_address(begin), static_cast<std::size_t>(bytes)}; }
};

// Segments come in chunks and go back to a list, so that splitting and merging never allocate once
// as many have existed. Threads: externally synchronised.
class extent_store {
 public:
  extent *create() {
    if (free_ == nullptr) refill();
    extent *const s = free_;
    free_ = s->next;
    return new (s) extent;  // field by field: assigning extent{} clears a line more slowly
  }
  void destroy(extent *s) {
    s->bytes = s->begin = 0;  // who still reads it shall not find what was there
    s->next = free_;
    free_ = s;
  }
  std::size_t bytes() const { return chunks_.size() * chunk * sizeof(extent); }

 private:
  static constexpr std::size_t chunk = 256;
  void refill() {
    chunks_.push_back(std::make_unique<extent[]>(chunk));
    for (std::size_t i = chunk; i-- > 0;) destroy(&chunks_.back()[i]);
  }
  extent *free_ = nullptr;
  std::vector<std::unique_ptr<extent[]>> chunks_;
};

}  // namespace stillmap
