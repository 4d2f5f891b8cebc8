// Where blocks of each size have been. A request goes to the first place of its size that can be
// had, in the order in which they came to be: a choice that depends on what is handed out and on
// nothing else, so that a program that repeats itself gets the same addresses every time, and what
// was made ready for it once stays ready. docs/design.md#the-caching-allocator
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "stillmap/allocators/segment.h"

namespace stillmap {

struct size_places {
  static constexpr std::size_t none = SIZE_MAX;
  static constexpr std::size_t most = 2048;
  struct place {
    std::uint64_t begin = 0;
    segment *kept = nullptr;  // free, and kept as it is
    place_list next;          // the one that waits for the same
  };

  std::uint64_t bytes = 0;
  std::vector<place> all;
  std::vector<std::uint64_t> open;  // those not handed out, and not known to be in use otherwise
  std::size_t low = 0;              // no place below is open
  segment *front = &unknown;        // what is kept at the first open one, where that is known
  static inline segment unknown{};  // stands for nothing; its place is the first

  // The first open one from `from` on.
  std::size_t first_open(std::size_t from = 0) const {
    from = std::max(from, low);
    for (std::size_t word = from / 64; word < open.size(); ++word) {
      std::uint64_t bits = open[word];
      if (word == from / 64) bits &= ~std::uint64_t{0} << (from % 64);
      if (bits != 0) return word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
    }
    return none;
  }
  // What is kept at the first open place; nullptr: nothing is there.
  segment *first_kept() {
    if (front != &unknown) return front;
    const std::size_t i = first_open();
    if (i == none) return nullptr;
    low = i;
    if (all[i].kept != nullptr) front = all[i].kept;
    return all[i].kept;
  }
  // Who comes first changes from block to block: nothing here depends on a guess.
  void keep(segment *s) {
    const std::size_t i = s->place;
    const bool first = (i <= low) | (i < front->place);
    all[i].kept = s;
    front = first ? s : front;
    reopen(i);
  }
  void unkeep(segment *s) {
    all[s->place].kept = nullptr;
    if (front == s) forget_front();
  }
  void forget_front() { front = &unknown; }
  void close(std::size_t i) { open[i / 64] &= ~(std::uint64_t{1} << (i % 64)); }
  void reopen(std::size_t i) {
    open[i / 64] |= std::uint64_t{1} << (i % 64);
    low = std::min(low, i);
  }

  void wait(std::size_t i, place_list &with) {
    close(i);
    all[i].next = with;
    with = {this, static_cast<std::uint32_t>(i)};
  }
};

// What these places waited for has gone.
inline void wake(place_list &waiting) {
  for (place_list w = std::exchange(waiting, {}); w.of != nullptr;) {
    size_places &of = *w.of;
    const std::uint32_t i = w.index;
    w = std::exchange(of.all[i].next, {});
    of.reopen(i);
    if (i < of.front->place) of.forget_front();
  }
}

// Threads: externally synchronised. Looking never allocates.
class places {
 public:
  places() { slots_.resize(256); }

  size_places *find(std::uint64_t bytes) const {
    for (std::size_t i = home(bytes);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i] == nullptr || slots_[i]->bytes == bytes) return slots_[i];
    }
  }

  // `s` is handed out, and its place is new: it is remembered, if there is room to.
  void remember(segment *s) {
    s->places = nullptr;
    if (count_ >= most_places) return;
    size_places *of = find(s->bytes);
    if (of == nullptr) {
      if (sizes_.size() * 2 >= slots_.size()) grow();
      sizes_.push_back(std::make_unique<size_places>());
      of = sizes_.back().get();
      of->bytes = s->bytes;
      put(of);
    }
    if (of->all.size() == size_places::most) return;
    if (of->all.size() % 64 == 0) of->open.push_back(0);
    s->place = static_cast<std::uint32_t>(of->all.size());
    s->places = of;
    of->all.push_back({s->begin, nullptr, {}});
    ++count_;
  }
  bool full() const { return count_ >= most_places; }
  // Requires: no segment has a place, and none waits.
  void forget_all() {
    slots_.assign(256, nullptr);
    sizes_.clear();
    count_ = 0;
  }
  std::size_t host_bytes() const {
    return slots_.capacity() * sizeof(void *) + sizes_.size() * sizeof(size_places) +
           count_ * (sizeof(size_places::place) + 1);
  }

 private:
  static constexpr std::size_t most_places = std::size_t{1} << 16;
  std::size_t home(std::uint64_t bytes) const {
    const std::uint64_t mixed = (bytes / allocation_granule) * 0x9E3779B97F4A7C15u;
    return static_cast<std::size_t>(mixed >> 40) & (slots_.size() - 1);
  }
  void put(size_places *of) {
    std::size_t i = home(of->bytes);
    while (slots_[i] != nullptr) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = of;
  }
  void grow() {
    slots_.assign(slots_.size() * 2, nullptr);
    for (const auto &of : sizes_) put(of.get());
  }

  std::vector<size_places *> slots_;
  std::vector<std::unique_ptr<size_places>> sizes_;
  std::size_t count_ = 0;
};

}  // namespace stillmap
