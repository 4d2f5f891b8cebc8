// The physical pages of an allocator that are mapped at several addresses. Pure bookkeeping.
// docs/allocator_growth.md#aliased-addresses
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace stillmap {

// It is in use at one of its addresses, its owner; the others are aliases, which it can be recalled
// to. They may be in different arenas. The owner changes under the locks of its old and its new
// arena, and other arenas read it: to them it is only an address that is not theirs.
struct shared_page {
  std::atomic<std::uint64_t> owner{0};
  // The last search that visited it; under the lock of the owner's arena.
  std::uint64_t visited_by = 0;
  shared_page *next_free = nullptr;  // of one that is not in use
  std::uint32_t mappings = 0;        // addresses at which it is mapped
};

// Threads: externally synchronised, except host_bytes(). Pages never move.
class shared_pages {
 public:
  // Afterwards `n` pages can be taken without host memory. May run out, and then changes nothing
  // that can be seen.
  void expect(std::size_t n) {
    while (spare_ < n) {
      const std::size_t row = std::clamp<std::size_t>(created_, smallest_row, largest_row);
      rows_.push_back(std::make_unique<shared_page[]>(row));
      created_ += row;
      for (std::size_t i = row; i-- > 0;) give_back(rows_.back()[i]);
    }
  }
  shared_page *take() {
    --spare_;
    return std::exchange(free_, free_->next_free);
  }
  void give_back(shared_page &page) {
    page.next_free = free_;
    free_ = &page;
    ++spare_;
  }
  // Threads: any.
  std::size_t host_bytes() const {
    return created_.load(std::memory_order_relaxed) * sizeof(shared_page);
  }

 private:
  static constexpr std::size_t smallest_row = 256, largest_row = 4096;
  std::atomic<std::size_t> created_{0};
  std::size_t spare_ = 0;  // pages in the list
  shared_page *free_ = nullptr;
  std::vector<std::unique_ptr<shared_page[]>> rows_;
};

}  // namespace stillmap
