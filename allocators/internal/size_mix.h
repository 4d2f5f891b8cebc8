// The sizes of an arena's small blocks, by the bytes that each makes up: whether the end of a page that a
// block leaves free will be filled by smaller ones. Pure bookkeeping.
// docs/allocator_placement.md#addresses
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace stillmap {

// Recent blocks count more. Threads: externally synchronised.
class size_mix {
 public:
  void add(std::uint64_t bytes) {
    bytes_[std::min<std::size_t>(static_cast<std::size_t>(bytes / step), bytes_.size() - 1)] +=
        bytes;
    total_ += bytes;
    if (total_ < most) return;
    total_ = 0;
    for (std::uint64_t &b : bytes_) total_ += b /= 2;
  }
  // Whether blocks of at most `gap` bytes make up enough of all to fill such a gap in each page, or a third
  // of it: not every page has one, and most are smaller than the largest.
  bool fills(std::uint64_t gap, std::uint64_t page) const {
    std::uint64_t smaller = 0;
    for (std::size_t i = 0; i < gap / step && i < bytes_.size(); ++i) smaller += bytes_[i];
    return 3 * smaller * page >= gap * total_ && total_ != 0;
  }

 private:
  static constexpr std::uint64_t step = 16 << 10, most = std::uint64_t{256} << 20;
  std::array<std::uint64_t, 65> bytes_{};
  std::uint64_t total_ = 0;
};

}  // namespace stillmap
