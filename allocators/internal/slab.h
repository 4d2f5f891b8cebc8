// Small blocks of one size, cut from one extent of about 64 KiB: which places are free is two
// words of bits. Classes are the multiples of the granule up to 8 KiB, so no size is rounded
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

  // How many blocks of `block_bytes` one has: as many as fill 64 KiB, and nothing over.
  static constexpr unsigned blocks_in(std::size_t block_bytes) {
    return static_cast<unsigned>(about / block_bytes);
  }

  extent *memory = nullptr;
  std::uint32_t block_bytes = 0;
  std::uint16_t block_count = 0;
  std::uint16_t free_blocks = 0;
  std::array<std::uint64_t, 2> free_bits{};
  std::array<std::uint64_t, 2> cross_stream{};  // record_use was called
  slab *previous = nullptr;                     // of its class, those with a free place
  slab *next = nullptr;
  std::array<std::uint16_t, max_blocks> slack{};  // bytes handed out that were not asked for

  std::uint64_t address(unsigned index) const {
    return memory->begin + std::uint64_t{index} * block_bytes;
  }
  bool is_free(unsigned index) const { return (free_bits[index / 64] >> (index % 64) & 1) != 0; }
  // Requires: one is free.
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

// The slabs of an arena that have a free place, by class. Threads: externally synchronised.
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
  void each(Use use) const {  // use may unlink the slab it is given
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
