// Free extents in bins, one for each power of two. Addresses and sizes lie side by side in an
// array, so that a best-fit search over hundreds of extents reads little memory, and sequentially.
// An extent for which the host has no memory waits in a list: freeing memory cannot fail.
// docs/allocator.md#the-caching-allocator
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <vector>

#include "stillmap/allocators/internal/extent.h"
#include "stillmap/allocators/internal/room.h"

namespace stillmap {

// Threads: externally synchronised.
class free_bins {
 public:
  struct entry {
    std::uint64_t begin = 0;
    std::uint64_t bytes = 0;
    extent *of = nullptr;
  };

  // Until it is removed, begin and bytes of `s` must not change.
  void insert(extent &s) noexcept {
    if (waiting_ != nullptr) [[unlikely]]
      insert_waiting();
    s.by_size.in = true;
    if (!enter(s)) wait(s);
  }
  void remove(extent &s) noexcept {
    s.by_size.in = false;
    if (s.bin_index == not_entered) return unlink(s);
    const std::size_t row = bin_of(s.bytes);
    std::vector<entry> &in = bins_[row];
    entry &here = in[s.bin_index];
    here = in.back();
    here.of->bin_index = s.bin_index;
    in.pop_back();
    if (in.empty()) filled_ &= ~(std::uint64_t{1} << row);
  }

  // Calls `use(entries, least)` for each bin that may have extents of `bytes` or more, until it
  // returns false. `least` is the smallest size in the bin.
  template <class Use>
  void each_bin(std::uint64_t bytes, Use use) const {
    const std::uint64_t from = ~std::uint64_t{0} << bin_of(bytes);
    for (std::uint64_t left = filled_ & from; left != 0; left &= left - 1) {
      const auto row = static_cast<std::size_t>(std::countr_zero(left));
      if (!use(std::span<const entry>(bins_[row]), std::uint64_t{1} << row)) return;
    }
    for (const extent *s = waiting_; s != nullptr; s = s->by_size.after) {
      const std::size_t row = bin_of(s->bytes);
      if ((from >> row & 1) == 0) continue;
      const entry here{s->begin, s->bytes, const_cast<extent *>(s)};
      if (!use(std::span<const entry>(&here, 1), std::uint64_t{1} << row)) return;
    }
  }

  std::size_t host_bytes() const {
    std::size_t sum = 0;
    for (const std::vector<entry> &row : bins_) sum += row.capacity() * sizeof(entry);
    return sum;
  }

 private:
  static constexpr std::uint32_t not_entered = UINT32_MAX;  // bin_index of an extent that waits

  static std::size_t bin_of(std::uint64_t bytes) {
    return static_cast<std::size_t>(std::bit_width(bytes)) - 1;
  }
  // False: the host has no memory for it.
  bool enter(extent &s) noexcept {
    const std::size_t row = bin_of(s.bytes);
    std::vector<entry> &in = bins_[row];
    if (in.size() == in.capacity() && !grow(in)) return false;
    s.bin_index = static_cast<std::uint32_t>(in.size());
    in.push_back({s.begin, s.bytes, &s});
    filled_ |= std::uint64_t{1} << row;
    return true;
  }
  static bool grow(std::vector<entry> &in) noexcept {
    try {
      make_room(in);
      return true;
    } catch (const std::bad_alloc &) {
      return false;
    }
  }
  void wait(extent &s) {
    s.bin_index = not_entered;
    s.by_size.before = nullptr;
    s.by_size.after = waiting_;
    if (waiting_ != nullptr) waiting_->by_size.before = &s;
    waiting_ = &s;
  }
  void unlink(extent &s) {
    (s.by_size.before != nullptr ? s.by_size.before->by_size.after : waiting_) = s.by_size.after;
    if (s.by_size.after != nullptr) s.by_size.after->by_size.before = s.by_size.before;
  }
  void insert_waiting() noexcept {
    while (waiting_ != nullptr) {
      extent &s = *waiting_;
      unlink(s);
      if (enter(s)) continue;
      return wait(s);
    }
  }

  extent *waiting_ = nullptr;  // linked by by_size, which only the other index uses
  std::uint64_t filled_ = 0;   // bins that are not empty
  std::array<std::vector<entry>, 64> bins_;
};

}  // namespace stillmap
