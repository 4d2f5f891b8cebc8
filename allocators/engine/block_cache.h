// Freed blocks that are kept whole for the next request of their size. Internal. docs/allocator_placement.md
#pragma once

#include <cstdint>

#include "stillmap/allocators/engine/extent.h"
#include "stillmap/allocators/engine/tlsf_index.h"

namespace stillmap {

// Threads: externally synchronised. Needs no host memory.
class block_cache {
 public:
  void add(extent &s) {
    index_.insert_unsorted(s);
    s.cached = true;
    bytes_ += s.bytes;
  }
  void remove(extent &s) {
    if (index_.is_sorted(s)) [[unlikely]]
      index_.remove(s);
    else
      index_.remove_unsorted(s);
    s.cached = false;
    bytes_ -= s.bytes;
  }
  // Of exactly that size, the one at the lowest address; nullptr: none.
  extent *find(std::uint64_t bytes) {
    if (bytes_ == 0) return nullptr;
    index_.sort([](const extent &s) { return s.bytes; });
    extent *best = nullptr;
    index_.each_in_bin(bytes, [&](extent &s) {
      if (s.bytes == bytes && (best == nullptr || s.begin < best->begin)) best = &s;
    });
    return best;
  }
  // Calls gone(extent) for each, which is in the cache no more.
  template <class Gone>
  void remove_each(Gone gone) {
    index_.remove_each([&](extent &s) {
      s.cached = false;
      gone(s);
    });
    bytes_ = 0;
  }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t bytes_ = 0;
  tlsf_index<extent, &extent::by_size> index_;
};

}  // namespace stillmap
