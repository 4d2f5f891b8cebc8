#include "stillmap/allocators/engine/slab_store.h"

#include "stillmap/allocators/internal/room.h"

namespace stillmap {

void slab_store::expect(std::size_t block_bytes) {
  if (spare_.empty()) {
    make_room(all_);
    spare_.reserve(all_.capacity());  // dissolve needs no host memory
    all_.push_back(std::make_unique<slab>());
    spare_.push_back(all_.back().get());
  }
  table_.make_room(slab::blocks_in(block_bytes));
  heaps_.expect(block_bytes);
}

slab &slab_store::make(extent &memory, std::size_t block_bytes) {
  slab &s = *spare_.back();
  spare_.pop_back();
  s = slab{};
  s.memory = &memory;
  s.block_bytes = static_cast<std::uint32_t>(block_bytes);
  s.block_count = static_cast<std::uint16_t>(slab::blocks_in(block_bytes));
  memory.blocks = &s;
  for (unsigned place = 0; place < s.block_count; ++place) {
    s.release(place);
    table_.insert(s.address(place), block_ref(&s, place));
  }
  heaps_.link(&s);
  return s;
}

void slab_store::dissolve(slab &s) {
  s.memory->blocks = nullptr;
  if (s.in_heap != slab::not_in_heap) heaps_.unlink(&s);
  for (unsigned place = 0; place < s.block_count; ++place) table_.erase(s.address(place));
  heaps_.forget(&s);
  spare_.push_back(&s);
}

}  // namespace stillmap
