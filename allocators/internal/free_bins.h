// Free extents in bins, one for each power of two. Addresses and sizes lie side by side in an
// array, so that a best-fit search over hundreds of extents reads little memory, and sequentially.
// docs/allocator.md#the-caching-allocator
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "stillmap/allocators/internal/extent.h"

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
  void insert(extent &s) {
    const std::size_t row = bin_of(s.bytes);
    s.bin_index = static_cast<std::uint32_t>(bins_[row].size());
    s.by_size.in = true;
    bins_[row].push_back({s.begin, s.bytes, &s});
    filled_ |= std::uint64_t{1} << row;
  }
  void remove(extent &s) {
    const std::size_t row = bin_of(s.bytes);
    std::vector<entry> &in = bins_[row];
    entry &here = in[s.bin_index];
    here = in.back();
    here.of->bin_index = s.bin_index;
    in.pop_back();
    s.by_size.in = false;
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
  }

  std::size_t host_bytes() const {
    std::size_t sum = 0;
    for (const std::vector<entry> &row : bins_) sum += row.capacity() * sizeof(entry);
    return sum;
  }

 private:
  static std::size_t bin_of(std::uint64_t bytes) {
    return static_cast<std::size_t>(std::bit_width(bytes)) - 1;
  }

  std::uint64_t filled_ = 0;  // bins that are not empty
  std::array<std::vector<entry>, 64> bins_;
};

}  // namespace stillmap
