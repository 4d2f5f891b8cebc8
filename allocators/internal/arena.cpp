#include "stillmap/allocators/internal/arena.h"

#include <algorithm>
#include <new>

namespace stillmap {

// ---- the slow path of allocation ----

void *arena::allocate(const block_request &r) {
  if (r.alignment == allocation_granule) {
    if (void *const block = reuse(r)) return block;
  }
  return allocate_not_reused(r);
}

void *arena::allocate_not_reused(const block_request &r) {
  const bool has_placements = r.alignment == allocation_granule && r.bytes > slab::largest_block;
  if (has_placements && last_bin_ != nullptr) {
    if (extent *const s = last_bin_->front) {  // not in the table
      enter_in_table(*s);
      take_cached(*s);
      return hand_out(*s, r);
    }
  }
  add_to_pattern(r);
  if (has_placements) {
    if (extent *const s = first_available(r, at_lent::stop)) return enter(s, r);
  }
  const block_request wanted = growth_for(r);
  extent *s = remembers_state() ? claim_by_state(wanted) : nullptr;
  if (s == nullptr) s = find_extent(wanted, search_in::own_zone, at_lent::stop);
  if (s == nullptr) return nullptr;
  return r.small() ? enter_slab(s, r) : enter(s, r);
}

inline void arena::add_to_pattern(const block_request &r) {
  if (!pattern.add(counters_.live, counters_.allocations - counters_.frees, r.bytes)) return;
  if (pattern.varies()) repeats = false;
  if (!pattern.repeats()) return;
  repeats = true;
  if (!packed_ || tight || in_chunks_) return;
  unpack();
  moved = 0;
}

void *arena::allocate_best_fit(const block_request &r, bool whole, search_in where) {
  flush();
  if (r.small() && !whole) {
    if (slab *const s = slabs_.first(static_cast<std::size_t>(r.bytes)))
      return allocate_in_slab(*s, r);
  }
  extent *const s = find_extent(whole ? r : growth_for(r), where, at_lent::skip);
  if (s == nullptr) return nullptr;
  return r.small() && !whole ? enter_slab(s, r) : enter(s, r);
}

// The first available placement of that size, otherwise a new one in free memory; then the same
// again after everything cached for other sizes was merged.
extent *arena::find_extent(const block_request &r, search_in where, at_lent lent) {
  const address_zone own = zone_of(r.bytes);
  for (const bool again : {false, true}) {
    if (again && cached_bytes_ == 0 && !empty_slabs_) break;
    if (again) flush();
    if (r.alignment == allocation_granule) {
      if (extent *const s = find_cached_placement(r, lent)) return s;
      if (lent == at_lent::stop && wants_lent(r)) return nullptr;
    }
    if (extent *const s = extents.place(r.bytes, r.alignment, own)) return s;
    if (!zoned_ || where != search_in::all_zones) continue;
    const address_zone other =
        own == address_zone::small ? address_zone::large : address_zone::small;
    if (extent *const s = extents.place(r.bytes, r.alignment, other)) return s;
  }
  return nullptr;
}

[[gnu::always_inline]] inline extent *arena::first_available(const block_request &r, at_lent lent) {
  if (packed_) return nullptr;  // it remembers none
  size_bin *const of = bin_of(r.bytes);
  if (of == nullptr) return nullptr;
  extent *blocker = nullptr;
  for (std::size_t i = of->first_open(); i != size_bin::none; i = of->first_open(i + 1)) {
    // A live block often lies in several placements of a size.
    const std::uint64_t begin = of->all[i].begin;
    if (blocker != nullptr && begin < blocker->end() && blocker->begin < begin + of->bytes) {
      of->wait(i, blocker->waiting, blocker);
      continue;
    }
    if (extent *const s = of->cached_at(i)) {
      take_cached(*s);
      return s;
    }
    if (extent *const s = claim(*of, i, blocker)) return s;
    if (lent == at_lent::stop && of->is_open(i)) return nullptr;
  }
  return nullptr;
}

extent *arena::find_cached_placement(const block_request &r, at_lent lent) {
  return first_available(r, lent);
}

// ---- placements by state ----

extent *arena::claim_by_state(const block_request &r) {
  if (r.alignment != allocation_granule) return nullptr;
  const auto found =
      state_placements_.find(r.bytes, counters_.live, counters_.allocations - counters_.frees);
  for (const std::uint64_t begin : found) {
    if (extent *const s = begin != 0 ? claim_at(begin, r.bytes) : nullptr) return s;
  }
  return nullptr;
}

// nullptr: not each part of it is free, or aliased to pages that are free at their owner's address.
extent *arena::claim_at(std::uint64_t begin, std::uint64_t bytes) {
  const std::uint64_t end = begin + bytes;
  extent *first = extents.at(begin);
  bool aliased = false;
  for (const extent *s = first;; s = s->next) {
    if (s == nullptr) return nullptr;
    aliased = aliased || s->state == extent_state::aliased;
    if (s->state != extent_state::aliased && s->state != extent_state::free) return nullptr;
    if (end <= s->end()) break;
  }
  if (aliased && recall_blocker(*first, begin, end) != nullptr) return nullptr;
  extents.expect_recalls(aliased ? recalls_.size() : 0);
  if (aliased) first = perform_recalls(first, begin);
  return extents.place_at(first, begin, bytes);
}

// ---- placements of sizes ----

// Checks that all aliased pages of a placement can be recalled: each must be free at its owner's
// address, the owner must lie outside the placement, and no two pages of the placement may be the
// same. Then `recalls_` has the recalls to perform; otherwise returns the list to wait in.
wait_list *arena::recall_blocker(const extent &first, std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t page = extents.page_bytes();
  const std::uint64_t low = begin & ~(page - 1), high = (end + page - 1) & ~(page - 1);
  ++claims_;
  recalls_.clear();
  for (const extent *s = &first; s != nullptr && s->begin < high; s = s->next) {
    if (s->state != extent_state::aliased) continue;
    const std::uint64_t last = std::min(high, s->end());
    for (std::uint64_t at = std::max(low, s->begin); at < last;) {
      if (!extents.contains(extents.owner_of(at))) return &want_lent_;
      const extent_map::run there = extents.next_run(at, (last - at) / page, claims_, extents);
      const std::uint64_t bytes = there.pages * page;
      if (bytes == 0 || (there.owner < high && there.owner + bytes > low)) return &want_recall_;
      if (wait_list *const list = run_blocker(at, there.owner, bytes)) return list;
      at += bytes;
    }
  }
  return nullptr;
}

wait_list *arena::run_blocker(std::uint64_t alias, std::uint64_t owner, std::uint64_t bytes) {
  recall r{alias, owner, bytes, extents.at(owner), false};
  for (extent *s = r.at;; s = s->next) {
    if (wait_list *const list = blocker_of(*s)) return list;
    r.cached = r.cached || s->cached;
    if (owner + bytes <= s->end()) break;
  }
  recalls_.push_back(r);
  return nullptr;
}

// A placement is available without a driver call if each part of it is free, cached, or aliased to
// pages that are free at their owner's address. Otherwise `blocker` is the live block in it, if that is
// the reason. Inlined: a request tries several.
[[gnu::always_inline]] inline extent *arena::claim(size_bin &of, std::size_t i, extent *&blocker) {
  const std::uint64_t begin = of.all[i].begin, end = begin + of.bytes;
  extent *first = extents.at(begin, of.all[i].at);
  bool cached = false, aliased = false;
  for (extent *s = first;; s = s->next) {
    if (s->state == extent_state::aliased) {
      aliased = true;
    } else if (wait_list *const list = blocker_of(*s)) {
      of.wait(i, *list, first);
      if (list == &s->waiting) blocker = s;
      return nullptr;
    }
    cached = cached || s->cached;
    if (end <= s->end()) break;
  }
  if (aliased) {
    if (wait_list *const list = recall_blocker(*first, begin, end)) {
      if (list == &want_lent_ && recalls_lent_) return nullptr;  // it stays open
      of.wait(i, *list, first);
      return nullptr;
    }
  }
  extents.expect_recalls(aliased ? recalls_.size() : 0);
  if (aliased) first = perform_recalls(first, begin);
  for (extent *s = first; cached; s = s->next) {
    if (s->cached) detach_cached(*s, begin);
    if (end <= s->end()) break;
  }
  extent *const s = extents.place_at(first, begin, of.bytes);
  of.assign(i, s);
  of.close(i);
  return s;
}

// Performs `recalls_` for a placement at `begin`, where `first` is. Returns the extent there now.
extent *arena::perform_recalls(extent *first, std::uint64_t begin) {
  extent *last = first;
  for (const recall &r : recalls_) {
    if (r.cached) evict(r.owner, r.owner + r.bytes, r.at);
    const std::size_t pages = static_cast<std::size_t>(r.bytes) / extents.page_bytes();
    last = extents.recall(r.alias, pages, last, r.at);
    if (!first->contains(begin)) first = last;
    counters_.recalled += pages;
    if (history_ != nullptr && history_->enabled()) notify_recalled(r.alias, r.owner, r.bytes);
  }
  wake(want_recall_);
  return extents.at(begin, first);
}

void arena::evict(std::uint64_t begin, std::uint64_t end, extent *hint) {
  for (extent *s = extents.at(begin, hint);; s = s->next) {
    if (s->cached) s = evict(*s);
    if (end <= s->end()) return;
  }
}

void arena::wake_waiting(extent &s) {
  s.awaited = false;
  wake(s.waiting);
}

extent *arena::evict(extent &s) {
  uncache(s);
  return release(s);
}

// A cached extent becomes part of the block at `begin`: removes its other entry from the table.
inline void arena::detach_cached(extent &s, std::uint64_t begin) {
  uncache(s);
  s.bin = nullptr;
  if (s.blocks != nullptr) dissolve(s);
  if (s.begin == begin || !s.in_table) return;
  blocks_.erase(s.begin);
  s.in_table = false;
}

// ---- growing ----

void arena::wake_for_pages(const extent_map::carved_extent &e) {
  wake(e.node->waiting);
  wake(want_pages_);
  wake(want_recall_);
  wake(want_lent_);
}

extent *arena::commit(const extent_map::carved_extent &e) {
  wake_for_pages(e);
  return extents.commit(e);
}

void arena::abandon(const extent_map::carved_extent &e) {
  wake_for_pages(e);
  extents.abandon(e);
}

void arena::put_back(extent *s) {
  wake(want_pages_);
  extents.put_back(s);
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

// May run out of host memory: then the extent is cached, or free.
void arena::enter_in_table_or_cache(extent &s) {
  try {
    enter_in_table(s);
  } catch (const std::bad_alloc &) {
    cache(s);
    throw;
  }
}

// Remembers the placement of an extent that does not come from a remembered one. Without host memory
// it does so when the extent is allocated the next time.
void arena::remember_placement(extent *s) noexcept {
  if (remembers_state()) state_placements_.remember(s->begin, s->bytes);
  if (s->bin != nullptr || packed_) return;
  if (placements_.full()) forget_placements();
  try {
    placements_.remember(s);
  } catch (const std::bad_alloc &) {
    s->bin = nullptr;
  }
}

void arena::forget_placements() {
  flush();
  extents.each([](extent &s) {
    s.bin = nullptr;
    s.waiting = {};
  });
  want_pages_ = want_recall_ = want_lent_ = {};
  placements_.forget_all();
  last_bin_ = nullptr;
}

void arena::pack() {
  if (packed_) return;
  forget_placements();
  packed_ = true;
}

void *arena::enter_slab(extent *memory, const block_request &r) {
  if (memory->blocks != nullptr) {
    slab &there = *memory->blocks;
    if (there.block_bytes == r.bytes) {
      if (there.in_heap == slab::not_in_heap) link(there);
      return allocate_in_slab(there, r);
    }
    dissolve(*memory);
  }
  const auto bytes = static_cast<std::size_t>(r.bytes);
  try {
    expect_slab(bytes);
  } catch (const std::bad_alloc &) {
    cache(*memory);
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
  remember_placement(memory);
  if (remembers_state()) state_placements_.add(memory->begin, memory->bytes);
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
  s.bin = nullptr;
  return extents.release(&s);
}

// An empty slab leaves the heap of its class. Its memory is cached, or free where it has no
// placement.
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
  if (cached_bytes_ != 0) {
    placements_.each_cached([&](extent &s) {
      lock.assume_held();
      evict(s);
    });
  }
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
  return sizeof(*this) + extents.host_bytes() + blocks_.host_bytes() + placements_.host_bytes() +
         state_placements_.host_bytes() + all_slabs_.size() * sizeof(slab) + slabs_.host_bytes() +
         pattern.host_bytes();
}

}  // namespace stillmap
