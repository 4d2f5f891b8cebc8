// Freed blocks kept as they are, by exact size: a program that asks for the same sizes again gets
// them without a search. They count as live in the books until they are flushed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "stillmap/allocators/segment.h"

namespace stillmap {

// Threads: externally synchronised. Nothing allocates.
class quick_bins {
 public:
  segment *pop(std::uint64_t bytes) {
    const std::size_t from = home(bytes);
    for (std::size_t i = 0; i < ways; ++i) {
      bin &b = bins_[from + i];
      if (b.bytes != bytes || b.head == nullptr) continue;
      segment *const s = b.head;
      b.head = s->next_quick;
      bytes_ -= bytes;
      return s;
    }
    return nullptr;
  }

  // False: all bins it could be in are other sizes'.
  bool push(segment *s) {
    const std::size_t from = home(s->bytes);
    bin *empty = nullptr;
    for (std::size_t i = 0; i < ways; ++i) {
      bin &b = bins_[from + i];
      if (b.bytes == s->bytes) {
        empty = &b;
        break;
      }
      if (b.head == nullptr && empty == nullptr) empty = &b;
    }
    if (empty == nullptr) return false;
    empty->bytes = s->bytes;
    s->next_quick = empty->head;
    empty->head = s;
    bytes_ += s->bytes;
    return true;
  }

  // Hands everything to `use`, which may change the segments.
  template <class Use>
  void flush(Use use) {
    if (bytes_ == 0) return;
    bytes_ = 0;
    for (bin &b : bins_) {
      while (b.head != nullptr) {
        segment *const s = b.head;
        b.head = s->next_quick;
        use(s);
      }
    }
  }

  std::uint64_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t log_bins = 9, ways = 4;
  struct bin {
    std::uint64_t bytes = 0;
    segment *head = nullptr;
  };
  static std::size_t home(std::uint64_t bytes) {
    return static_cast<std::size_t>((bytes / allocation_granule) * 0x9E3779B97F4A7C15u >>
                                    (64 - log_bins));
  }
  // A size has `ways` bins in a row; the last ones have theirs beyond the end.
  std::array<bin, (std::size_t{1} << log_bins) + ways> bins_{};
  std::uint64_t bytes_ = 0;
};

}  // namespace stillmap
