// A slab: about 64 KiB in one extent, divided into blocks of one size. Two words are the bitmap of
// free blocks. Size classes are the multiples of the granule up to 8 KiB, so sizes are not rounded
// further.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stillmap/allocators/engine/extent.h"

namespace stillmap {

struct slab {
  static constexpr std::size_t max_blocks = 128;
  static constexpr std::uint32_t not_in_heap = UINT32_MAX;
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
  std::array<std::uint64_t, 2> cross_stream{};    // record_use was called
  std::uint32_t in_heap = not_in_heap;            // index in the heap of its class
  std::array<std::uint16_t, max_blocks> slack{};  // rounding of each allocated block, in bytes

  std::uint64_t address(unsigned index) const {
    return memory->begin + std::uint64_t{index} * block_bytes;
  }
  bool empty() const { return free_blocks == block_count; }
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

// The slabs of an arena that have free blocks: for each size class a binary heap by address, so that
// the choice depends only on which blocks are live. An empty slab is in a heap only if it is alone
// there. Threads: externally synchronised.
class slab_heaps {
 public:
  static std::size_t class_of(std::size_t bytes) { return bytes / allocation_granule - 1; }

  // The slab at the lowest address; nullptr: none.
  slab *first(std::size_t bytes) const { return first_[class_of(bytes)]; }
  bool alone(const slab *s) const { return heaps_[class_of(s->block_bytes)].size() == 1; }
  // There is one more slab of that class: makes room, so that link allocates nothing. May run out of
  // host memory, and then changes nothing.
  void expect(std::size_t bytes) {
    const std::size_t c = class_of(bytes);
    heaps_[c].reserve(std::bit_ceil(slabs_[c] + 1));
    ++slabs_[c];
  }
  void link(slab *s) {
    std::vector<slab *> &heap = heaps_[class_of(s->block_bytes)];
    heap.push_back(s);
    rise(heap, heap.size() - 1, s);
  }
  void unlink(slab *s) {
    std::vector<slab *> &heap = heaps_[class_of(s->block_bytes)];
    const std::size_t hole = s->in_heap;
    s->in_heap = slab::not_in_heap;
    slab *const last = heap.back();
    heap.pop_back();
    if (last != s) {
      sink(heap, hole, last);
      rise(heap, last->in_heap, last);
    } else if (heap.empty()) {
      first_[class_of(s->block_bytes)] = nullptr;
    }
  }
  // The slab no longer exists. Requires: it is in no heap.
  void forget(const slab *s) { --slabs_[class_of(s->block_bytes)]; }
  std::size_t host_bytes() const {
    std::size_t sum = 0;
    for (const auto &heap : heaps_) sum += heap.capacity() * sizeof(slab *);
    return sum;
  }

 private:
  static bool before(const slab *a, const slab *b) { return a->memory->begin < b->memory->begin; }
  void put(std::vector<slab *> &heap, std::size_t i, slab *s) {
    heap[i] = s;
    s->in_heap = static_cast<std::uint32_t>(i);
    if (i == 0) first_[class_of(s->block_bytes)] = s;
  }
  void rise(std::vector<slab *> &heap, std::size_t i, slab *s) {
    for (; i != 0 && before(s, heap[(i - 1) / 2]); i = (i - 1) / 2) put(heap, i, heap[(i - 1) / 2]);
    put(heap, i, s);
  }
  void sink(std::vector<slab *> &heap, std::size_t i, slab *s) {
    for (;;) {
      std::size_t child = 2 * i + 1;
      if (child >= heap.size()) break;
      if (child + 1 < heap.size() && before(heap[child + 1], heap[child])) ++child;
      if (!before(heap[child], s)) break;
      put(heap, i, heap[child]);
      i = child;
    }
    put(heap, i, s);
  }

  static constexpr std::size_t classes = slab::largest_block / allocation_granule;
  std::array<slab *, classes> first_{};
  std::array<std::size_t, classes> slabs_{};  // of each class, full or not
  std::array<std::vector<slab *>, classes> heaps_;
};

}  // namespace stillmap
