#include "stillmap/allocators/engine/block_store.h"

#include <new>

namespace stillmap {
// ---- entering ----

void block_store::enter_in_table_or_release(extent &s) {
  try {
    if (s.blocks != nullptr) slabs_.dissolve(*s.blocks);  // which makes room
    table_.make_room(1);
  } catch (const std::bad_alloc &) {
    release(s);
    throw;
  }
  table_.insert(s.begin, block_ref(&s));
  s.in_table = true;
}

void *block_store::enter_slab(extent *memory, const block_request &r) {
  if (memory->blocks != nullptr) {
    slab &there = *memory->blocks;
    if (there.block_bytes == r.bytes) {
      begin_use(*memory, true);
      if (there.in_heap == slab::not_in_heap) link(there);
      return allocate_in(there, r);
    }
    slabs_.dissolve(there);
  }
  const auto bytes = static_cast<std::size_t>(r.bytes);
  try {
    slabs_.expect(bytes);
  } catch (const std::bad_alloc &) {
    release(*memory);
    throw;
  }
  memory->allocated = false;
  begin_use(*memory, true);
  leave_table(*memory);
  if (slab *const other = slabs_.first(bytes); other != nullptr && other->empty()) {
    remove_empty(*other);
  }
  return allocate_in(slabs_.make(*memory, bytes), r);
}

void block_store::leave_table(extent &s) {
  if (s.in_table) table_.erase(s.begin);
  s.in_table = false;
}

// ---- freeing ----

extent *block_store::release(extent &s) {
  if (s.blocks != nullptr) slabs_.dissolve(*s.blocks);
  leave_table(s);
  return extents.release(&s);
}

void block_store::relink(slab &s) {
  if (s.free_blocks == 1) link(s);
  if (!s.empty()) return;
  // Its memory is cached like any block, and still divided: the next request of the class may get
  // it. Where nothing is remembered, it is kept only while no other slab has room.
  if (!slabs_.alone(s))
    remove_empty(s);
  else if (!repeats_)
    empty_slabs_ = true;
  else
    cache(*s.memory);
}

void block_store::link(slab &s) {
  slab *const other = slabs_.first(s.block_bytes);
  if (other != nullptr && other->empty()) remove_empty(*other);
  slabs_.link(s);
}

// An empty slab leaves the heap of its class. Its memory is cached, or free.
void block_store::remove_empty(slab &s) {
  slabs_.unlink(s);
  if (!s.memory->cached) cache(*s.memory);
}

// ---- cached blocks ----

extent *block_store::take_cached(std::uint64_t bytes) {
  extent *const found = cache_.find(bytes);
  if (found != nullptr) cache_.remove(*found);
  return found;
}

void block_store::detach_cached(extent &s, std::uint64_t begin) {
  cache_.remove(s);
  if (s.blocks != nullptr) slabs_.dissolve(*s.blocks);
  if (s.begin != begin) leave_table(s);
}

void block_store::evict(std::uint64_t begin, std::uint64_t end, extent *hint) {
  for (extent *s = extents.at(begin, hint);; s = s->next) {
    if (s->cached) {
      cache_.remove(*s);
      s = release(*s);
    }
    if (end <= s->end()) return;
  }
}

void block_store::flush() {
  cache_.remove_each([&](extent &s) { release(s); });
  if (!empty_slabs_) return;
  empty_slabs_ = false;
  for (std::size_t bytes = allocation_granule; bytes <= slab::largest_block;
       bytes += allocation_granule) {
    if (slab *const s = slabs_.first(bytes); s != nullptr && s->empty()) remove_empty(*s);
  }
}

void block_store::set_repeats(bool on) {
  flush();
  repeats_ = on;
  if (!on) loop_.forget_all();
}

// ---- blocks that other streams use ----

void block_store::record_use(std::uint64_t address, stream_ref other) {
  uses.add(address, other);
  const block_ref block = table_.find(address);
  if (block.in_slab()) {
    const unsigned place = block.index();
    block.as_slab()->cross_stream[place / 64] |= std::uint64_t{1} << (place % 64);
  } else {
    block.as_extent()->cross_stream = true;
  }
}

pending_block &block_store::defer_free(std::uint64_t address) {
  const block_ref block = table_.find(address);
  if (block.in_slab()) {
    slab &s = *block.as_slab();
    counters_.count_free(s.block_bytes, s.slack[block.index()]);
    counters_.pending_free += s.block_bytes;
  } else {
    extent &s = *block.as_extent();
    s.allocated = false;
    counters_.count_free(s.bytes, s.slack);
    counters_.pending_free += s.bytes;
  }
  return uses.defer(address);
}

void block_store::complete_free(std::uint64_t address) {
  const block_ref block = table_.find(address);
  uses.complete(address);
  if (block.in_slab()) {
    slab &s = *block.as_slab();
    const unsigned place = block.index();
    s.cross_stream[place / 64] &= ~(std::uint64_t{1} << (place % 64));
    counters_.pending_free -= s.block_bytes;
    return_to_slab(s, place);
  } else {
    extent &s = *block.as_extent();
    s.cross_stream = false;
    counters_.pending_free -= s.bytes;
    cache(s);
  }
}

// ---- facts ----

std::size_t block_store::usable_size(std::uint64_t address) const {
  const block_ref block = table_.find(address);
  if (!block) return 0;
  if (!block.in_slab()) {
    const extent &s = *block.as_extent();
    return s.allocated ? static_cast<std::size_t>(s.bytes) : 0;
  }
  const slab &s = *block.as_slab();
  return s.is_free(block.index()) || uses.is_deferred(address) ? 0 : s.block_bytes;
}

}  // namespace stillmap
