#include "stillmap/allocators/arena.h"

#include <algorithm>

namespace stillmap {

// ---- allocating beyond the first look ----

void *arena::allocate_beyond_slabs(const block_request &r) {
  const block_request memory = growth_for(r);
  segment *s = quick_.pop(memory.bytes);
  if (s != nullptr) {
    blocks_.erase(s->begin);
  } else {
    s = books.place(memory.bytes);
  }
  if (s == nullptr && quick_.bytes() != 0) {
    flush();
    s = books.place(memory.bytes);
  }
  return s != nullptr ? enter_slab(s, r) : nullptr;
}

void *arena::allocate_by_search(const block_request &r) {
  segment *s = books.place(r.bytes, r.alignment);
  if (s == nullptr && quick_.bytes() != 0) {
    flush();
    s = books.place(r.bytes, r.alignment);
  }
  return s != nullptr ? enter(s, r) : nullptr;
}

void *arena::allocate_thoroughly(const block_request &r, bool whole) {
  flush();
  if (r.small() && !whole) {
    if (slab *const s = slabs_.first(static_cast<std::size_t>(r.bytes))) return take_place(*s, r);
  }
  const block_request memory = whole ? r : growth_for(r);
  segment *const s = books.place(memory.bytes, memory.alignment, heap_books::search::thorough);
  if (s == nullptr) return nullptr;
  return r.small() && !whole ? enter_slab(s, r) : enter(s, r);
}

block_request arena::growth_for(const block_request &r) {
  if (!r.small()) return r;
  return {r.bytes * slab::places_for(static_cast<std::size_t>(r.bytes)), allocation_granule, 0};
}

void *arena::enter(segment *s, const block_request &r) {
  blocks_.insert(s->begin, block_ref(s));
  s->used_elsewhere = false;
  return hand_out(*s, r);
}

void *arena::enter_slab(segment *memory, const block_request &r) {
  if (spare_slabs_.empty()) {
    all_slabs_.push_back(std::make_unique<slab>());
    spare_slabs_.push_back(all_slabs_.back().get());
  }
  slab *const s = spare_slabs_.back();
  spare_slabs_.pop_back();
  *s = slab{};
  s->memory = memory;
  s->block_bytes = static_cast<std::uint32_t>(r.bytes);
  s->places = static_cast<std::uint16_t>(slab::places_for(static_cast<std::size_t>(r.bytes)));
  memory->handed_out = false;
  for (unsigned place = 0; place < s->places; ++place) {
    s->give_back(place);
    blocks_.insert(s->address(place), block_ref(s, place));
  }
  slabs_.link(s);
  return take_place(*s, r);
}

// ---- taking back ----

void arena::release(segment &s) {
  blocks_.erase(s.begin);
  books.release(&s);
}

// Requires: all its places are free.
void arena::dissolve(slab &s) {
  slabs_.unlink(&s);
  for (unsigned place = 0; place < s.places; ++place) blocks_.erase(s.address(place));
  books.release(s.memory);
  spare_slabs_.push_back(&s);
}

void arena::flush() {
  quick_.flush([&](segment *s) { release(*s); });
  slabs_.each([&](slab *s) {
    if (s->free_places == s->places) dissolve(*s);
  });
}

// ---- use on other streams ----

bool arena::record_use(std::uint64_t address, stream_ref other) {
  const block_ref block = blocks_.find(address);
  if (!block) return false;
  if (block.in_slab()) {
    slab &s = *block.of_slab();
    const unsigned place = block.place();
    if (s.is_free(place)) return false;
    if (const auto it = uses_.find(address); it != uses_.end() && it->second.held) return false;
    if (other == stream) return true;
    s.used_elsewhere[place / 64] |= std::uint64_t{1} << (place % 64);
  } else {
    segment &s = *block.whole();
    if (!s.handed_out) return false;
    if (other == stream) return true;
    s.used_elsewhere = true;
  }
  auto &streams = uses_[address].streams;
  if (std::find(streams.begin(), streams.end(), other) == streams.end()) streams.push_back(other);
  return true;
}

arena::held_block arena::hold(std::uint64_t address) {
  const block_ref block = blocks_.find(address);
  use_list &use = uses_.find(address)->second;
  use.held = true;
  if (block.in_slab()) {
    slab &s = *block.of_slab();
    took_back(s.block_bytes, s.slack[block.place()]);
    counters_.held += s.block_bytes;
  } else {
    segment &s = *block.whole();
    s.handed_out = false;
    took_back(s.bytes, s.slack);
    counters_.held += s.bytes;
  }
  return {address, std::move(use.streams), {}};
}

void arena::finish(const held_block &h) {
  const block_ref block = blocks_.find(h.address);
  uses_.erase(h.address);
  if (block.in_slab()) {
    slab &s = *block.of_slab();
    const unsigned place = block.place();
    s.used_elsewhere[place / 64] &= ~(std::uint64_t{1} << (place % 64));
    counters_.held -= s.block_bytes;
    return_place(s, place);
  } else {
    segment &s = *block.whole();
    s.used_elsewhere = false;
    counters_.held -= s.bytes;
    keep(s);
  }
}

// ---- looking ----

std::size_t arena::usable_size(std::uint64_t address) const {
  const block_ref block = blocks_.find(address);
  if (!block) return 0;
  if (!block.in_slab()) {
    const segment &s = *block.whole();
    return s.handed_out ? static_cast<std::size_t>(s.bytes) : 0;
  }
  const auto use = uses_.find(address);
  const bool held_already = use != uses_.end() && use->second.held;
  const slab &s = *block.of_slab();
  return s.is_free(block.place()) || held_already ? 0 : s.block_bytes;
}

std::size_t arena::host_bytes() const {
  return sizeof(*this) + books.host_bytes() + blocks_.host_bytes() +
         all_slabs_.size() * sizeof(slab);
}

}  // namespace stillmap
