// Remembers where blocks of each size have been. A request goes to the first available placement of
// its size, in the order in which they were first used. The choice depends only on the blocks that
// are allocated, so a program that repeats itself gets the same addresses in each repetition, and
// pages that were mapped there stay useful. docs/allocator_placement.md#placements-of-sizes
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "stillmap/allocators/internal/extent.h"
#include "stillmap/allocators/internal/room.h"

namespace stillmap {

// The placements of one size. The members that every request touches come first and fill one cache
// line.
struct alignas(64) size_bin {
  static constexpr std::size_t none = SIZE_MAX;
  struct placement {
    std::uint64_t begin = 0;
    extent *at = nullptr;  // the last extent known to be there; if cached, the one there now
    wait_list next;        // the next placement that waits for the same thing
  };
  // Bitmaps of 64 placements. open: not allocated, and not known to overlap memory in use. cached:
  // a cached block lies there.
  struct word {
    std::uint64_t open = 0, cached = 0;
  };

  std::uint64_t bytes = 0;
  word first;                     // of placements 0 to 63
  extent *front = nullptr;        // the cached extent at the first open placement, if known
  std::uint32_t front_index = 0;  // the index of that placement, else 0
  std::uint32_t low = 0;          // no placement below this index is open
  bool listed = false;            // in the list of bins that may have cached blocks
  std::uint32_t in_vain = 0;      // requests in a row that found no lent pages to return
  std::vector<placement> all;
  std::vector<word> more;
  std::vector<std::uint64_t> open_words;  // a bit for each of `more`: a placement in it is open
  size_bin *next_listed = nullptr;

  word &word_of(std::size_t i) { return i < 64 ? first : more[i / 64 - 1]; }
  const word &word_of(std::size_t i) const { return i < 64 ? first : more[i / 64 - 1]; }
  static std::uint64_t bit(std::size_t i) { return std::uint64_t{1} << (i % 64); }

  // The first open placement at or after `from`. Usually it is among the first 64.
  std::size_t first_open(std::size_t from = 0) const {
    from = std::max<std::size_t>(from, low);
    const std::uint64_t near = from < 64 ? first.open >> from : 0;
    if (near != 0) return from + static_cast<std::size_t>(std::countr_zero(near));
    return first_open_beyond(from);
  }
  [[gnu::noinline]] std::size_t first_open_beyond(std::size_t from) const {
    if (from >= all.size()) return none;
    const std::uint64_t here = word_of(from).open & (~std::uint64_t{0} << (from % 64));
    if (here != 0) {
      return (from & ~std::size_t{63}) + static_cast<std::size_t>(std::countr_zero(here));
    }
    // Word i of all is number i - 1 of `more`.
    const std::size_t next = from / 64;
    std::uint64_t among = ~std::uint64_t{0} << (next % 64);
    for (std::size_t row = next / 64; row < open_words.size(); ++row, among = ~std::uint64_t{0}) {
      const std::uint64_t words = open_words[row] & among;
      if (words == 0) continue;
      const std::size_t i = row * 64 + static_cast<std::size_t>(std::countr_zero(words));
      return (i + 1) * 64 + static_cast<std::size_t>(std::countr_zero(more[i].open));
    }
    return none;
  }
  bool is_open(std::size_t i) const { return (word_of(i).open & bit(i)) != 0; }
  void open(std::size_t i) {
    word_of(i).open |= bit(i);
    if (i >= 64) open_words[(i / 64 - 1) / 64] |= bit(i / 64 - 1);
  }
  void close(std::size_t i) {
    word &w = word_of(i);
    w.open &= ~bit(i);
    if (i >= 64 && w.open == 0) open_words[(i / 64 - 1) / 64] &= ~bit(i / 64 - 1);
  }
  extent *cached_at(std::size_t i) const {
    return (word_of(i).cached & bit(i)) != 0 ? all[i].at : nullptr;
  }
  // The cached extent at the first open placement; nullptr: there is none.
  extent *first_cached() { return front != nullptr ? front : find_front(); }
  [[gnu::noinline]] extent *find_front() {
    // Usually it is among the first 64.
    const std::uint64_t near = low < 64 ? first.open >> low : 0;
    if (near == 0) return find_front_beyond();
    low += static_cast<std::uint32_t>(std::countr_zero(near));
    return (first.cached & bit(low)) != 0 ? set_front() : nullptr;
  }
  [[gnu::noinline]] extent *find_front_beyond() {
    const std::size_t i = first_open_beyond(low);
    if (i == none) return nullptr;
    low = static_cast<std::uint32_t>(i);
    return cached_at(i) != nullptr ? set_front() : nullptr;
  }
  extent *set_front() {
    front_index = low;
    return front = all[low].at;
  }
  // From now on `s`, of this size, is at placement `i`.
  void assign(std::size_t i, extent *s) {
    all[i].at = s;
    s->slot = static_cast<std::uint32_t>(i);
    s->bin = this;
  }
  // Branch-free: whether `s` comes first is unpredictable.
  void cache(extent *s) {
    const std::uint32_t i = s->slot;
    const bool comes_first = (i <= low) | (i < front_index);
    front = comes_first ? s : front;
    front_index = comes_first ? i : front_index;
    low = std::min(low, i);
    open(i);
    word_of(i).cached |= bit(i);
  }
  // The placement stays open.
  void uncache(extent *s) {
    word_of(s->slot).cached &= ~bit(s->slot);
    if (front == s) forget_front();
  }
  void take(extent *s) {
    close(s->slot);
    word_of(s->slot).cached &= ~bit(s->slot);
    if (front == s) forget_front();
  }
  void forget_front() {
    front = nullptr;
    front_index = 0;
  }
  void reopen(std::size_t i) {
    open(i);
    low = std::min(low, static_cast<std::uint32_t>(i));
    if (i < front_index) forget_front();
  }

  // `there`: an extent that the placement overlaps.
  void wait(std::size_t i, wait_list &with, extent *there) {
    close(i);
    all[i].at = there;
    all[i].next = with;
    with = {this, static_cast<std::uint32_t>(i)};
  }
};

// Reopens all placements in a list.
inline void wake(wait_list &waiting) {
  for (wait_list w = std::exchange(waiting, {}); w.of != nullptr;) {
    size_bin &of = *w.of;
    const std::uint32_t i = w.index;
    w = std::exchange(of.all[i].next, {});
    of.reopen(i);
  }
}

// Threads: externally synchronised. Lookups never allocate host memory.
class placement_cache {
 public:
  placement_cache() { slots_.resize(256); }

  size_bin *find(std::uint64_t bytes) const {
    for (std::size_t i = home(bytes);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i] == nullptr || slots_[i]->bytes == bytes) return slots_[i];
    }
  }

  // Remembers the new placement of an allocated extent, unless the cache is full. May run out of
  // host memory: then the placement is not remembered.
  void remember(extent *s) {
    s->bin = nullptr;
    if (count_ >= max_placements) return;
    size_bin *of = find(s->bytes);
    if (of == nullptr) {
      make_room(sizes_);
      auto made = std::make_unique<size_bin>();
      made->bytes = s->bytes;
      if (sizes_.size() * 2 >= slots_.size()) grow();
      of = made.get();
      put(of);
      sizes_.push_back(std::move(made));
    }
    // First the bits, which may be there without their placements.
    const std::size_t words = of->all.size() / 64;
    of->open_words.resize((words + 63) / 64);
    of->more.resize(words);
    of->all.push_back({s->begin, nullptr, {}});
    of->assign(of->all.size() - 1, s);
    ++count_;
  }
  // A block was cached in the bin.
  void list(size_bin &of) {
    if (of.listed) return;
    of.listed = true;
    of.next_listed = std::exchange(listed_, &of);
  }
  // Calls `uncache(extent &)`, which does so, for each cached extent.
  template <class Uncache>
  void each_cached(Uncache uncache) {
    for (size_bin *of = std::exchange(listed_, nullptr); of != nullptr; of = of->next_listed) {
      of->listed = false;
      for (std::size_t i = 0; i < of->all.size(); i += 64) {
        for (std::uint64_t left = of->word_of(i).cached; left != 0; left &= left - 1) {
          uncache(*of->all[i + static_cast<std::size_t>(std::countr_zero(left))].at);
        }
      }
    }
  }
  bool full() const { return count_ >= max_placements; }
  // Requires: no extent refers to a placement, and none waits.
  void forget_all() {
    slots_.assign(256, nullptr);
    sizes_.clear();
    listed_ = nullptr;
    count_ = 0;
  }
  std::size_t host_bytes() const {
    return slots_.capacity() * sizeof(void *) + sizes_.size() * sizeof(size_bin) +
           count_ * (sizeof(size_bin::placement) + 1);
  }

 private:
  static constexpr std::size_t max_placements = std::size_t{1} << 18;
  std::size_t home(std::uint64_t bytes) const {
    const std::uint64_t mixed = (bytes / allocation_granule) * 0x9E3779B97F4A7C15u;
    return static_cast<std::size_t>(mixed >> 40) & (slots_.size() - 1);
  }
  void put(size_bin *of) {
    std::size_t i = home(of->bytes);
    while (slots_[i] != nullptr) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = of;
  }
  void grow() {
    std::vector<size_bin *> larger(slots_.size() * 2);
    slots_.swap(larger);
    for (const auto &of : sizes_) put(of.get());
  }

  std::vector<size_bin *> slots_;
  std::vector<std::unique_ptr<size_bin>> sizes_;
  size_bin *listed_ = nullptr;  // the first bin that may have cached blocks
  std::size_t count_ = 0;
};

}  // namespace stillmap
