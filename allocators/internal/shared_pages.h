// The physical pages of an allocator that are mapped at several addresses, by number. Pure
// bookkeeping. docs/allocator.md#growth-and-remapping
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace stillmap {

// It is in use at one of its addresses, its owner; the others are aliases, which it can be recalled
// to. They may be in different arenas. The owner changes under the locks of its old and its new
// arena, and other arenas read it: to them it is only an address that is not theirs.
struct shared_page {
  std::atomic<std::uint64_t> owner{0};
  std::uint64_t visited_by =
      0;  // the last search that visited it; under the lock of the owner's arena
  std::uint32_t mappings = 0;   // addresses at which it is mapped
  std::uint32_t next_free = 0;  // of a number that is not in use
};

// Threads: externally synchronised, except operator[].
class shared_pages {
 public:
  // Requires: a number from take(). Entries never move.
  shared_page &operator[](std::uint32_t number) {
    const std::uint64_t n = number + first_row;
    const auto row = static_cast<unsigned>(std::bit_width(n)) - first_row_bits;
    return rows_[row][n - (std::uint64_t{first_row} << row)];
  }
  // Afterwards `n` numbers can be taken without host memory. May run out, and then changes nothing
  // that can be seen.
  void expect(std::size_t n) {
    while (size_ + n > capacity_) {
      const auto row =
          static_cast<unsigned>(std::bit_width(capacity_ + first_row)) - first_row_bits;
      rows_[row] = std::make_unique<shared_page[]>(std::size_t{first_row} << row);
      capacity_ += std::size_t{first_row} << row;
    }
  }
  std::uint32_t take() {
    if (free_ == 0) return static_cast<std::uint32_t>(size_++);
    const std::uint32_t number = free_;
    free_ = (*this)[number].next_free;
    return number;
  }
  void give_back(std::uint32_t number) {
    (*this)[number].next_free = free_;
    free_ = number;
  }
  // Threads: any.
  std::size_t host_bytes() const {
    return capacity_.load(std::memory_order_relaxed) * sizeof(shared_page);
  }

 private:
  // Row i has 256 << i entries.
  static constexpr std::uint32_t first_row = 1 << 8;
  static constexpr unsigned first_row_bits = 9;
  std::array<std::unique_ptr<shared_page[]>, 24> rows_;
  std::atomic<std::size_t> capacity_{0};
  std::size_t size_ = 1;  // 0 is no number
  std::uint32_t free_ = 0;
};

}  // namespace stillmap
