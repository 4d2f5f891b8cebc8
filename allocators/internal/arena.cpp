#include "stillmap/allocators/internal/arena.h"

#include <algorithm>

namespace stillmap {

// ---- allocating beyond the first look ----

void *arena::allocate_beyond_slabs(const block_request &r) {
  segment *const s = find_segment(growth_for(r), extent_map::search::quick);
  return s != nullptr ? enter_slab(s, r) : nullptr;
}

void *arena::allocate_by_search(const block_request &r) {
  segment *const s = find_segment(r, extent_map::search::quick);
  return s != nullptr ? enter(s, r) : nullptr;
}

void *arena::allocate_thoroughly(const block_request &r, bool whole) {
  flush();
  if (r.small() && !whole) {
    if (slab *const s = slabs_.first(static_cast<std::size_t>(r.bytes))) return take_place(*s, r);
  }
  segment *const s = find_segment(whole ? r : growth_for(r), extent_map::search::thorough);
  if (s == nullptr) return nullptr;
  return r.small() && !whole ? enter_slab(s, r) : enter(s, r);
}

// The first place of the size that can be had, or else a new one in what is free; and the same
// again when nothing is kept for other sizes any more.
segment *arena::find_segment(const block_request &r, extent_map::search how) {
  for (const bool again : {false, true}) {
    if (again && kept_bytes_ == 0 && empty_slabs_ == 0) break;
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
    if (segment *const s = of->kept_at(i)) {
      take_kept(*s);
      return s;
    }
    if (segment *const s = claim(*of, i)) return s;
  }
  return nullptr;
}

// ---- places that were used before ----

// What a place that `s` lies in has to wait for; nullptr: nothing.
place_list *arena::in_the_way(segment &s) {
  if (s.state == segment_state::free || s.kept) return nullptr;
  if (s.state != segment_state::live) return &want_pages_;
  s.awaited = true;
  return &s.waiting;
}

// Pages that are lent to a place: each has to be free where it is now, which must not be within the
// place, nor the same for two of its pages. Then what to call back is in `recalls_`; otherwise: the
// list to wait in.
place_list *arena::in_the_way_of_recall(const segment &first, std::uint64_t begin,
                                        std::uint64_t end) {
  const std::uint64_t page = books.page_bytes();
  const std::uint64_t low = begin & ~(page - 1), high = (end + page - 1) & ~(page - 1);
  ++claims_;
  recalls_.clear();
  for (const segment *s = &first; s != nullptr && s->begin < high; s = s->next) {
    if (s->state != segment_state::lent) continue;
    const std::uint64_t last = std::min(high, s->end());
    for (std::uint64_t at = std::max(low, s->begin); at < last;) {
      const extent_map::run there = books.next_run(at, (last - at) / page, claims_);
      const std::uint64_t bytes = there.pages * page;
      if (bytes == 0 || (there.owner < high && there.owner + bytes > low)) return &want_recall_;
      if (place_list *const list = in_the_way_of_run(at, there.owner, bytes)) return list;
      at += bytes;
    }
  }
  return nullptr;
}

place_list *arena::in_the_way_of_run(std::uint64_t lent, std::uint64_t owner, std::uint64_t bytes) {
  recall r{lent, owner, 0, false};
  for (segment *s = books.at(owner);; s = s->next) {
    if (place_list *const list = in_the_way(*s)) return list;
    r.kept = r.kept || s->kept;
    if (owner + bytes <= s->end()) break;
    if (s->next != nullptr) continue;
    // Addresses may be neighbours by chance.
    r.bytes = s->end() - owner;
    recalls_.push_back(r);
    return in_the_way_of_run(lent + r.bytes, owner + r.bytes, bytes - r.bytes);
  }
  r.bytes = bytes;
  recalls_.push_back(r);
  return nullptr;
}

// A block can be there without a driver call if all of it is free, or lent to where it is free now.
segment *arena::claim(size_places &of, std::size_t i) {
  const std::uint64_t begin = of.all[i].begin, end = begin + of.bytes;
  // What was there last is there still, more often than not. (Those that are no more are empty.)
  segment *first = of.all[i].at;
  if (begin - first->begin >= first->bytes) first = books.at(begin);
  bool kept = false, lent = false;
  for (segment *s = first;; s = s->next) {
    if (s->state == segment_state::lent) {
      lent = true;
    } else if (place_list *const list = in_the_way(*s)) {
      of.wait(i, *list);
      return nullptr;
    }
    kept = kept || s->kept;
    if (end <= s->end()) break;
  }
  if (lent) {
    if (place_list *const list = in_the_way_of_recall(*first, begin, end)) {
      of.wait(i, *list);
      return nullptr;
    }
    for (const recall &r : recalls_) call_back(r);
    wake(want_recall_);
    first = books.at(begin);
  }
  for (segment *s = first; kept; s = s->next) {
    if (s->kept) strip(*s, begin);
    if (end <= s->end()) break;
  }
  segment *const s = books.place_at(first, begin, of.bytes);
  of.settle(i, s);
  of.close(i);
  return s;
}

void arena::call_back(const recall &r) {
  if (r.kept) loosen(r.owner, r.owner + r.bytes);
  const std::size_t pages = static_cast<std::size_t>(r.bytes) / books.page_bytes();
  books.recall(r.lent, pages);
  counters_.recalled += pages;
  if (history != nullptr && history->enabled()) tell_recalled(r.lent, r.owner, r.bytes);
}

void arena::loosen(std::uint64_t begin, std::uint64_t end) {
  for (segment *s = books.at(begin);; s = s->next) {
    if (s->kept) s = loosen(*s);
    if (end <= s->end()) return;
  }
}

segment *arena::loosen(segment &s) {
  unkeep(s);
  return release(s);
}

// What was kept is part of what will begin at `begin`, where the table may lead to it already.
void arena::strip(segment &s, std::uint64_t begin) {
  unkeep(s);
  s.places = nullptr;
  if (s.begin == begin || !s.in_table) return;
  blocks_.erase(s.begin);
  s.in_table = false;
}

// ---- growing ----

void arena::wake_for_pages(const extent_map::extent &e) {
  wake(e.busy->waiting);
  wake(want_pages_);
  wake(want_recall_);
}

segment *arena::commit(const extent_map::extent &e) {
  wake_for_pages(e);
  return books.commit(e);
}

void arena::abandon(const extent_map::extent &e) {
  wake_for_pages(e);
  books.abandon(e);
}

void arena::put_back(segment *s) {
  wake(want_pages_);
  books.put_back(s);
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
  if (s->places != nullptr || packed_) return;
  if (places_.full()) forget_places();
  places_.remember(s);
}

void arena::forget_places() {
  flush();
  books.each([](segment &s) {
    s.places = nullptr;
    s.waiting = {};
  });
  want_pages_ = want_recall_ = {};
  places_.forget_all();
  last_places_ = nullptr;
}

void arena::pack(bool on) {
  if (on && !packed_) forget_places();
  packed_ = on;
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

segment *arena::release(segment &s) {
  if (s.in_table) blocks_.erase(s.begin);
  s.in_table = false;
  s.places = nullptr;
  return books.release(&s);
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
  if (kept_bytes_ != 0) places_.each_kept([&](segment &s) { loosen(s); });
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
  held_block h{address, {}, held_count_, 0};
  for (const stream_ref s : use.streams) h.uses.push_back({s, {}, false});
  return h;
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
