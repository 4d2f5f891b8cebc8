// Remembers where requests went by what was live then. So a loop whose blocks are packed comes to rest
// in the memory that packed blocks need. Internal. docs/allocator_placement.md#placements-by-state
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "stillmap/allocators/internal/growth_pattern.h"

namespace stillmap {

// Two placements are remembered for a request: that of the same size when the same addresses were in use,
// and that of the same size when as many bytes and blocks were live. If each request gets the first, the
// addresses of an iteration are those of the iteration before. The second leads there from another state,
// such as one in which a block that outlives an iteration lies elsewhere.
//
// Threads: externally synchronised. Without host memory less is remembered.
class state_placements {
 public:
  // An extent is in use from now on, or is not any more.
  void add(std::uint64_t begin, std::uint64_t bytes) { in_use_ += hash(begin, bytes); }
  void remove(std::uint64_t begin, std::uint64_t bytes) { in_use_ -= hash(begin, bytes); }

  // Addresses where the request may have been before, the most likely first; 0: unknown.
  std::array<std::uint64_t, 2> find(std::uint64_t bytes, std::uint64_t live_bytes,
                                    std::uint64_t live_blocks) {
    bytes_ = bytes;
    same_addresses_ = mix(in_use_ ^ bytes * odd) | 1;
    same_amount_ = growth_pattern::key_of(live_bytes, live_blocks, bytes) | 1;
    if (filled_ == 0) return {};
    return {entries_[slot_of(same_addresses_)].begin, entries_[slot_of(same_amount_)].begin};
  }
  // The request that was searched for last got this extent.
  void remember(std::uint64_t begin, std::uint64_t bytes) noexcept {
    if (bytes != bytes_ || (2 * filled_ + 2 >= entries_.size() && !grow())) return;
    for (const std::uint64_t key : {same_addresses_, same_amount_}) {
      entry &e = entries_[slot_of(key)];
      filled_ += e.key == 0 ? 1 : 0;
      e = {key, begin};
    }
  }
  void forget_all() noexcept {
    entries_ = std::vector<entry>();
    filled_ = 0;
  }
  std::size_t host_bytes() const { return entries_.capacity() * sizeof(entry); }

 private:
  struct entry {
    std::uint64_t key = 0;  // 0: none
    std::uint64_t begin = 0;
  };
  static constexpr std::size_t at_first = 1024, most = std::size_t{1} << 19;
  static constexpr std::uint64_t odd = 0x9E3779B97F4A7C15u;

  static std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
    return x ^ (x >> 32);
  }
  static std::uint64_t hash(std::uint64_t begin, std::uint64_t bytes) {
    return mix(begin * odd ^ bytes);
  }
  // Of the key, or the empty one for it. Requires: there are entries.
  std::size_t slot_of(std::uint64_t key) const {
    std::size_t i = (key >> 32) & (entries_.size() - 1);
    while (entries_[i].key != 0 && entries_[i].key != key) i = (i + 1) & (entries_.size() - 1);
    return i;
  }
  // A program that asks for ever new requests begins anew now and then.
  bool grow() noexcept {
    if (entries_.size() >= most) forget_all();
    try {
      std::vector<entry> old(std::max(2 * entries_.size(), at_first));
      old.swap(entries_);
      for (const entry &e : old) {
        if (e.key != 0) entries_[slot_of(e.key)] = e;
      }
      return true;
    } catch (const std::bad_alloc &) {
      return false;
    }
  }

  std::uint64_t in_use_ = 0;  // the sum over all extents in use
  std::uint64_t bytes_ = 0, same_addresses_ = 0, same_amount_ = 0;  // of the latest request
  std::vector<entry> entries_;                                      // at most half of them filled
  std::size_t filled_ = 0;
};

}  // namespace stillmap
