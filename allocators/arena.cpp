#include "stillmap/allocators/arena.h"

#include <algorithm>

namespace stillmap {

// ---- allocating beyond the first look ----

void *arena::allocate_beyond_slabs(const block_request &r) {
  segment *const s = find_segment(growth_for(r), heap_books::search::quick);
  return s != nullptr ? enter_slab(s, r) : nullptr;
}

void *arena::allocate_by_search(const block_request &r) {
  segment *const s = find_segment(r, heap_books::search::quick);
  return s != nullptr ? enter(s, r) : nullptr;
}

void *arena::allocate_thoroughly(const block_request &r, bool whole) {
  flush();
  if (r.small() && !whole) {
    if (slab *const s = slabs_.first(static_cast<std::size_t>(r.bytes))) return take_place(*s, r);
  }
  segment *const s = find_segment(whole ? r : growth_for(r), heap_books::search::thorough);
  if (s == nullptr) return nullptr;
  return r.small() && !whole ? enter_slab(s, r) : enter(s, r);
}

// The first place of the size that can be had, or else a new one in what is free; and the same
// again when nothing is kept for other sizes any more.
segment *arena::find_segment(const block_request &r, heap_books::search how) {
  for (const bool again : {false, true}) {
    if (again && kept_ == nullptr && empty_slabs_ == 0) break;
    if (again) flush();
    if (r.alignment == allocation_granule) {
      if (segment *const s = find_place(r)) return s;
    }
    if (segment *const s = books.place(r.bytes, r.alignment, how)) return s;
  }
  return nullptr;
}

segment *arena::find_place(const block_request &r) {
  size_places *const of = places_.find(r.bytes);
  if (of == nullptr) return nullptr;
  for (std::size_t i = of->first_open(); i != size_places::none; i = of->first_open(i + 1)) {
    if (segment *const s = of->all[i].kept) {
      take_kept(*s);
      return s;
    }
    if (segment *const s = claim(*of, i)) return s;
  }
  return nullptr;
}

// ---- places that were used before ----

// Only free memory, or memory kept for some size, between the two.
bool arena::free_or_kept(std::uint64_t begin, std::uint64_t end) const {
  for (std::uint64_t at = begin; at < end;) {
    const segment *const s = books.at(at);
    if (s->state != segment_state::free && !s->kept) return false;
    at = s->end();
  }
  return true;
}

// Whether a block could be there without a driver call: all of it is free, or lent to where it is
// free now.
bool arena::claimable(std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t page = books.page_bytes();
  const std::uint64_t low = begin - begin % page, high = end + (page - end % page) % page;
  bool lent = false;
  for (std::uint64_t at = begin; at < end;) {
    const segment *const s = books.at(at);
    lent = lent || s->state == segment_state::lent;
    if (s->state != segment_state::free && s->state != segment_state::lent && !s->kept) {
      return false;
    }
    at = s->end();
  }
  if (!lent) return true;
  ++claims_;
  for (std::uint64_t at = low; at < high; at += page) {
    if (books.at(at)->state != segment_state::lent) continue;
    const std::uint64_t owner = books.owner_of(at);
    if (owner >= low && owner < high) return false;
    if (!free_or_kept(owner, owner + page) || !books.first_asked(at, claims_)) return false;
  }
  return true;
}

segment *arena::claim(size_places &of, std::size_t i) {
  const std::uint64_t begin = of.all[i].begin, end = begin + of.bytes;
  if (!claimable(begin, end)) return nullptr;
  const std::uint64_t page = books.page_bytes();
  loosen(begin, end);
  for (std::uint64_t at = begin - begin % page; at < end; at += page) {
    if (books.at(at)->state != segment_state::lent) continue;
    const std::uint64_t owner = books.owner_of(at);
    loosen(owner, owner + page);
    books.recall(at);
    ++counters_.recalled;
    if (history != nullptr && history->on()) tell_recalled(at, owner);
  }
  segment *const s = books.place_at(begin, of.bytes);
  s->place = static_cast<std::uint32_t>(i);
  s->places = &of;
  of.close(i);
  return s;
}

void arena::loosen(std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t at = begin; at < end;) {
    segment *const s = books.at(at);
    at = s->end();
    if (s->kept) loosen(*s);
  }
}

void arena::loosen(segment &s) {
  s.places->unkeep(&s);
  unkeep(s);
  release(s);
}

// ---- what is handed out ----

block_request arena::growth_for(const block_request &r) {
  if (!r.small()) return r;
  return {r.bytes * slab::places_for(static_cast<std::size_t>(r.bytes)), allocation_granule, 0};
}

void arena::enter_in_table(segment &s) {
  blocks_.insert(s.begin, block_ref(&s));
  s.in_table = true;
}

void *arena::enter(segment *s, const block_request &r) {
  if (!s->in_table) enter_in_table(*s);
  if (r.alignment == allocation_granule) note_place(s);
  s->used_elsewhere = false;
  return hand_out(*s, r);
}

// A segment that comes from no place of its size makes a new one.
void arena::note_place(segment *s) {
  if (s->places != nullptr) return;
  if (places_.full()) {
    flush();
    books.each([](segment &other) { other.places = nullptr; });
    places_.forget_all();
    last_places_ = nullptr;
  }
  places_.remember(s);
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
  note_place(memory);
  if (memory->in_table) {
    blocks_.erase(memory->begin);
    memory->in_table = false;
  }
  for (unsigned place = 0; place < s->places; ++place) {
    s->give_back(place);
    blocks_.insert(s->address(place), block_ref(s, place));
  }
  slabs_.link(s);
  ++empty_slabs_;
  return take_place(*s, r);
}

// ---- taking back ----

void arena::release(segment &s) {
  if (s.in_table) blocks_.erase(s.begin);
  s.in_table = false;
  s.places = nullptr;
  books.release(&s);
}

// Requires: all its places are free.
void arena::dissolve(slab &s) {
  --empty_slabs_;
  slabs_.unlink(&s);
  for (unsigned place = 0; place < s.places; ++place) blocks_.erase(s.address(place));
  keep(*s.memory);
  spare_slabs_.push_back(&s);
}

void arena::flush() {
  slabs_.each([&](slab *s) {
    if (s->free_places == s->places) dissolve(*s);
  });
  while (kept_ != nullptr) loosen(*kept_);
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
  return sizeof(*this) + books.host_bytes() + blocks_.host_bytes() + places_.host_bytes() +
         all_slabs_.size() * sizeof(slab);
}

}  // namespace stillmap
