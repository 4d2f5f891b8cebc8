// A slab: about 64 KiB in one extent, divided into blocks of one size. Two words are the bitmap of
// free blocks. Size classes are the multiples of the granule up to 8 KiB, so sizes are not rounded
// further.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "stillmap/allocators/internal/extent.h"

namespace stillmap {

struct slab {
  static constexpr std::size_t max_blocks = 128;
  static constexpr std::size_t largest_block = 16 * allocation_granule;
  static constexpr std::size_t about = std::size_t{64} << 10;

  // The number of blocks in a slab: as many as 64 KiB has room for, with no remainder in the
  // extent.
  static constexpr unsigned blocks_in(std::size_t block_bytes) {
    return static_cast<unsigned>(about / block_bytes);
  }

  extent *memory = nullptr;
  std::uint32_t block_bytes = 0;
  std::uint16_t block_count = 0;
  std::uint16_t free_blocks = 0;
  std::array<std::uint64_t, 2> free_bits{};
  std::array<std::uint64_t, 2> cross_stream{};  // record_use was called
  slab *previous = nullptr;  // in the list of slabs of its class with free blocks
  slab *next = nullptr;
  std::array<std::uint16_t, max_blocks> slack{};  // rounding of each allocated block, in bytes

  std::uint64_t address(unsigned index) const {
    return memory->begin + std::uint64_t{index} * block_bytes;
  }
  bool is_free(unsigned index) const { return (free_bits[index / 64] >> (index % 64) & 1) != 0; }
  // Requires: a block is free.
  unsigned acquire() {
    const unsigned word = free_bits[0] != 0 ? 0 : 1;
    const unsigned index = 64 * word + static_cast<unsigned>(std::countr_zero(free_bits[word]));
    free_bits[word] &= free_bits[word] - 1;
    --free_blocks;
    return index;
  }
  void release(unsigned index) {
    free_bits[index / 64] |= std::uint64_t{1} << (index % 64);
    ++free_blocks;
  }
};

// The slabs of an arena that have free blocks, by size class. Threads: externally synchronised.
class slab_lists {
 public:
  static std::size_t class_of(std::size_t bytes) { return bytes / allocation_granule - 1; }

  slab *first(std::size_t bytes) const { return heads_[class_of(bytes)]; }
  void link(slab *s) {
    slab *&head = heads_[class_of(s->block_bytes)];
    s->previous = nullptr;
    s->next = head;
    if (head != nullptr) head->previous = s;
    head = s;
  }
  void unlink(slab *s) {
    if (s->previous != nullptr) {
      s->previous->next = s->next;
    } else {
      heads_[class_of(s->block_bytes)] = s->next;
    }
    if (s->next != nullptr) s->next->previous = s->previous;
  }
  template <class Use>
  void each(Use use) const {  // `use` may unlink its slab
    for (slab *head : heads_) {
      for (slab *s = head; s != nullptr;) {
        slab *const following = s->next;
        use(s);
        s = following;
      }
    }
  }

 private:
  std::array<slab *, slab::largest_block / allocation_granule> heads_{};
};

}  // namespace stillmap
