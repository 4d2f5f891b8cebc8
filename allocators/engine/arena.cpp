#include "stillmap/allocators/engine/arena.h"

#include <algorithm>
#include <new>

#include "stillmap/allocators/engine/room.h"

namespace stillmap {

// ---- the slow path of allocation ----

void *arena::allocate(const block_request &r) {
  if (r.alignment == allocation_granule) {
    if (void *const block = reuse(r)) return block;
  }
  return allocate_not_reused(r);
}

void *arena::allocate_not_reused(const block_request &r) {
  add_to_pattern(r);
  const block_request wanted = growth_for(r);
  const claimed there = claim_remembered(wanted, recalls_lent_);
  if (there.lent) return nullptr;
  extent *s = there.block;
  if (s == nullptr && r.alignment == allocation_granule) s = find_cached(wanted.bytes);
  if (s == nullptr) s = find_extent(wanted, search_in::own_zone);
  return s != nullptr ? enter_found(s, r) : nullptr;
}

inline void arena::add_to_pattern(const block_request &r) {
  if (in_chunks_) return;
  if (!pattern.add(counters_.live, counters_.allocations - counters_.frees, r.bytes)) return;
  if (repeats_ ? pattern.varies() : pattern.repeats()) set_repeats(!repeats_);
}

// What it moved until then does not tell what it will move.
void arena::set_repeats(bool on) {
  flush();
  repeats_ = on;
  moved = 0;
  if (!on) loop_.forget_all();
}

void *arena::allocate_best_fit(const block_request &r, bool whole, search_in where) {
  flush();
  if (r.small() && !whole) {
    if (slab *const s = slabs_.first(static_cast<std::size_t>(r.bytes)))
      return allocate_in_slab(*s, r);
  }
  extent *const s = find_extent(whole ? r : growth_for(r), where);
  if (s == nullptr) return nullptr;
  return r.small() && !whole ? enter_slab(s, r) : enter(s, r);
}

// A cached extent of exactly that size, the one at the lowest address. A loop whose blocks stay whole is
// served in the shortest time.
extent *arena::find_cached(std::uint64_t bytes) {
  if (cached_bytes_ == 0) return nullptr;
  cached_.sort([](const extent &s) { return s.bytes; });
  extent *best = nullptr;
  cached_.each_in_bin(bytes, [&](extent &s) {
    if (s.bytes == bytes && (best == nullptr || s.begin < best->begin)) best = &s;
  });
  if (best != nullptr) uncache(*best);
  return best;
}

// In free memory, then in what was cached, too, which is merged for that. Where memory is short it is merged
// at once: blocks lie more densely, and fewer are found whole.
extent *arena::find_extent(const block_request &r, search_in where) {
  const address_zone own = zone_of(r.bytes);
  if (short_of_memory_ && cached_bytes_ != 0) flush();
  for (const bool again : {false, true}) {
    if (again && cached_bytes_ == 0 && !empty_slabs_) break;
    if (again) flush();
    if (extent *const s = extents.place(r.bytes, r.alignment, own)) return s;
    if (!zoned_ || where != search_in::all_zones) continue;
    const address_zone other =
        own == address_zone::small ? address_zone::large : address_zone::small;
    if (extent *const s = extents.place(r.bytes, r.alignment, other)) return s;
  }
  return nullptr;
}

void arena::evict(std::uint64_t begin, std::uint64_t end, extent *hint) {
  for (extent *s = extents.at(begin, hint);; s = s->next) {
    if (s->cached) s = evict(*s);
    if (end <= s->end()) return;
  }
}

extent *arena::evict(extent &s) {
  uncache(s);
  return release(s);
}

// ---- blocks ----

block_request arena::growth_for(const block_request &r) {
  if (!r.small()) return r;
  return {r.bytes * slab::blocks_in(static_cast<std::size_t>(r.bytes)), allocation_granule, 0};
}

// May run out of host memory, but not for an extent that is a slab, which makes room.
void arena::enter_in_table(extent &s) {
  if (s.blocks != nullptr) dissolve(s);
  blocks_.make_room(1);
  blocks_.insert(s.begin, block_ref(&s));
  s.in_table = true;
}

// May run out of host memory: then the extent is free.
void arena::enter_in_table_or_release(extent &s) {
  try {
    enter_in_table(s);
  } catch (const std::bad_alloc &) {
    release(s);
    throw;
  }
}

void *arena::enter_slab(extent *memory, const block_request &r) {
  if (memory->blocks != nullptr) {
    slab &there = *memory->blocks;
    if (there.block_bytes == r.bytes) {
      begin_use(*memory, true);
      if (there.in_heap == slab::not_in_heap) link(there);
      return allocate_in_slab(there, r);
    }
    dissolve(*memory);
  }
  const auto bytes = static_cast<std::size_t>(r.bytes);
  try {
    expect_slab(bytes);
  } catch (const std::bad_alloc &) {
    release(*memory);
    throw;
  }
  slab *const s = spare_slabs_.back();
  spare_slabs_.pop_back();
  *s = slab{};
  s->memory = memory;
  s->block_bytes = static_cast<std::uint32_t>(bytes);
  s->block_count = static_cast<std::uint16_t>(slab::blocks_in(bytes));
  memory->blocks = s;
  memory->allocated = false;
  begin_use(*memory, true);
  if (memory->in_table) {
    blocks_.erase(memory->begin);
    memory->in_table = false;
  }
  for (unsigned place = 0; place < s->block_count; ++place) {
    s->release(place);
    blocks_.insert(s->address(place), block_ref(s, place));
  }
  link(*s);
  return allocate_in_slab(*s, r);
}

// The host memory for one more slab. May run out, and then changes nothing.
void arena::expect_slab(std::size_t bytes) {
  if (spare_slabs_.empty()) {
    make_room(all_slabs_);
    spare_slabs_.reserve(all_slabs_.capacity());  // dissolve needs no host memory
    all_slabs_.push_back(std::make_unique<slab>());
    spare_slabs_.push_back(all_slabs_.back().get());
  }
  blocks_.make_room(slab::blocks_in(bytes));
  slabs_.expect(bytes);
}

// ---- freeing ----

extent *arena::release(extent &s) {
  if (s.blocks != nullptr) dissolve(s);
  if (s.in_table) blocks_.erase(s.begin);
  s.in_table = false;
  return extents.release(&s);
}

// An empty slab leaves the heap of its class. Its memory is cached, or free.
void arena::remove_empty(slab &s) {
  slabs_.unlink(&s);
  if (!s.memory->cached) cache(*s.memory);
}

// Requires: all blocks of its slab are free.
void arena::dissolve(extent &memory) {
  slab &s = *memory.blocks;
  memory.blocks = nullptr;
  if (s.in_heap != slab::not_in_heap) slabs_.unlink(&s);
  for (unsigned place = 0; place < s.block_count; ++place) blocks_.erase(s.address(place));
  slabs_.forget(&s);
  spare_slabs_.push_back(&s);
}

void arena::flush() {
  cached_.remove_each([&](extent &s) {
    lock.assume_held();
    s.cached = false;
    release(s);
  });
  cached_bytes_ = 0;
  if (!empty_slabs_) return;
  empty_slabs_ = false;
  for (std::size_t bytes = allocation_granule; bytes <= slab::largest_block;
       bytes += allocation_granule) {
    if (slab *const s = slabs_.first(bytes); s != nullptr && s->empty()) remove_empty(*s);
  }
}

// ---- queries ----

std::size_t arena::usable_size(std::uint64_t address) const {
  const block_ref block = blocks_.find(address);
  if (!block) return 0;
  if (!block.in_slab()) {
    const extent &s = *block.as_extent();
    return s.allocated ? static_cast<std::size_t>(s.bytes) : 0;
  }
  const auto use = uses_.find(address);
  const bool already_freed = use != uses_.end() && use->second.freed;
  const slab &s = *block.as_slab();
  return s.is_free(block.index()) || already_freed ? 0 : s.block_bytes;
}

std::size_t arena::host_bytes() const {
  return sizeof(*this) + extents.host_bytes() + blocks_.host_bytes() + loop_.host_bytes() +
         all_slabs_.size() * sizeof(slab) + slabs_.host_bytes() + pattern.host_bytes();
}

}  // namespace stillmap
