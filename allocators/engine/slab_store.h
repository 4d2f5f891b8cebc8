// The slabs of an arena: small blocks of one size in one extent. Internal. docs/allocator_placement.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "stillmap/allocators/engine/block_table.h"
#include "stillmap/allocators/engine/extent.h"
#include "stillmap/allocators/engine/slab.h"

namespace stillmap {

// Threads: externally synchronised.
class slab_store {
 public:
  // `table`: where the blocks are found by their addresses.
  explicit slab_store(block_table &table) : table_(table) {}

  // Of those that have room, the slab at the lowest address; nullptr: none.
  slab *first(std::size_t block_bytes) const { return heaps_.first(block_bytes); }
  // Whether no other slab of the size has room.
  bool alone(const slab &s) const { return heaps_.alone(&s); }

  // A block of a slab that has room.
  std::uint64_t acquire(slab &s, std::uint16_t slack) {
    const unsigned place = s.acquire();
    s.slack[place] = slack;
    const std::uint64_t block = s.address(place);
    return s.free_blocks != 0 ? block : unlink_full(s, block);
  }
  // It has room again, or for the first time.
  void link(slab &s) { heaps_.link(&s); }
  // It has none, or is not used.
  void unlink(slab &s) { heaps_.unlink(&s); }

  // The host memory for one more slab of the size. May run out, and then changes nothing.
  void expect(std::size_t block_bytes);
  // Divides an extent. Requires: expect().
  slab &make(extent &memory, std::size_t block_bytes);
  // Requires: all its blocks are free.
  void dissolve(slab &s);

  std::size_t host_bytes() const { return all_.size() * sizeof(slab) + heaps_.host_bytes(); }

 private:
  // Returns `block`: as its last call it costs acquire no registers.
  [[gnu::noinline]] std::uint64_t unlink_full(slab &s, std::uint64_t block) {
    heaps_.unlink(&s);
    return block;
  }

  slab_heaps heaps_;
  block_table &table_;
  std::vector<std::unique_ptr<slab>> all_;
  std::vector<slab *> spare_;
};

}  // namespace stillmap
