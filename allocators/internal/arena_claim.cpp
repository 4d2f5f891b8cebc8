// Where the requests of a loop went before: whether such a place may be taken, and by which recalls. Pages that
// were lent to other arenas return to where they are still mapped.
// docs/allocator_growth.md#lent-pages
#include <algorithm>
#include <utility>

#include "stillmap/allocators/internal/arena.h"
#include "stillmap/allocators/internal/arena_locks.h"

namespace stillmap {

bool arena::begin_search(const block_request &r) {
  if (!repeats_ || r.alignment != allocation_granule) return false;
  loop_.begin_search(r.bytes, counters_.live, counters_.allocations - counters_.frees);
  return true;
}

// `stop_at_lent`: at a place that lacks only lent pages; then it is true afterwards. Otherwise such places are
// passed over.
extent *arena::claim_remembered(const block_request &r, bool &stop_at_lent) {
  const bool stops = std::exchange(stop_at_lent, false);
  if (!begin_search(r)) return nullptr;
  for (const auto by : {loop_memory::by::addresses, loop_memory::by::amount}) {
    const loop_memory::place *const p = loop_.find(by);
    if (p == nullptr) continue;
    const std::uint64_t begin = p->begin, end = begin + r.bytes;
    extent *first = extents.at(begin, p->at);
    if (first->cached && first->begin == begin && first->bytes == r.bytes) {
      uncache(*first);
      return first;
    }
    const availability now = examine(first, begin, end, nullptr);
    if (now == availability::lent && stops) {
      stop_at_lent = true;
      return nullptr;
    }
    if (now != availability::available) continue;
    extents.expect_recalls(recalls_.size());
    if (!recalls_.empty()) first = perform_recalls(first, begin);
    for (extent *s = first;; s = s->next) {
      if (s->cached) detach_cached(*s, begin);
      if (end <= s->end()) break;
    }
    return extents.place_at(first, begin, r.bytes);
  }
  return nullptr;
}

// Whether the block at `begin` would need no driver call: `recalls_` has what must be recalled for it. With
// `others`, lent pages can be recalled too. `first`: the extent at `begin`.
arena::availability arena::examine(const extent *first, std::uint64_t begin, std::uint64_t end,
                                   const held_arenas *others) {
  const std::uint64_t page = extents.page_bytes();
  const std::uint64_t low = begin & ~(page - 1), high = (end + page - 1) & ~(page - 1);
  const virtual_range place{device_address(low), static_cast<std::size_t>(high - low)};
  ++examinations_;
  recalls_.clear();
  availability worst = availability::available;
  for (const extent *s = first; s != nullptr; s = s->next) {
    if (s->state == extent_state::aliased) {
      const availability now =
          examine_aliased(std::max(low, s->begin), std::min(high, s->end()), place, others);
      if (now == availability::in_use) return now;
      worst = std::max(worst, now);
    } else if (!is_unused(*s)) {
      return availability::in_use;
    }
    if (end <= s->end()) return worst;
  }
  return availability::in_use;
}

// The same of aliased pages: each must be unused where it is, which is outside of the place, and no two may be
// the same.
arena::availability arena::examine_aliased(std::uint64_t at, std::uint64_t last,
                                           const virtual_range &place, const held_arenas *others) {
  while (at < last) {
    const std::uint64_t owner = extents.owner_of(at);
    arena *in = extents.contains(owner) ? this : nullptr;
    if (in == nullptr && others == nullptr) return availability::lent;
    if (in == nullptr) in = others->addresses.at(owner);
    if (in == nullptr) return availability::in_use;
    if (others != nullptr) others->held.assume_held(*in);
    in->lock.assume_held();
    if (in != this && in->pinned) return availability::in_use;
    const extent_map::run there =
        extents.next_run(at, static_cast<std::size_t>((last - at) / extents.page_bytes()),
                         examinations_, in->extents);
    const std::uint64_t bytes = there.pages * extents.page_bytes();
    if (bytes == 0 ||
        (there.owner < place.end().value() && place.begin.value() < there.owner + bytes)) {
      return availability::in_use;
    }
    extent *const used = in->extents.at(there.owner);
    if (!in->all_unused(used, there.owner + bytes)) return availability::in_use;
    recalls_.push_back({at, there.owner, bytes, in, used});
    at += bytes;
  }
  return availability::available;
}

bool arena::all_unused(const extent *first, std::uint64_t end) const {
  for (const extent *s = first; s != nullptr && is_unused(*s); s = s->next) {
    if (end <= s->end()) return true;
  }
  return false;
}

// Performs `recalls_` for a place at `begin`, where `first` is. Returns the extent there now.
extent *arena::perform_recalls(extent *first, std::uint64_t begin) {
  extent *last = first;
  for (const recall &r : recalls_) {
    evict(r.owner, r.owner + r.bytes, r.at);
    const std::size_t pages = static_cast<std::size_t>(r.bytes) / extents.page_bytes();
    last = extents.recall(r.alias, pages, last, r.at);
    if (!first->contains(begin)) first = last;
    counters_.recalled += pages;
    if (history_ != nullptr && history_->enabled()) notify_recalled(r.alias, r.owner, r.bytes);
  }
  return extents.at(begin, first);
}

// A cached extent becomes part of the block at `begin`: removes its other entry from the table.
inline void arena::detach_cached(extent &s, std::uint64_t begin) {
  uncache(s);
  if (s.blocks != nullptr) dissolve(s);
  if (s.begin == begin || !s.in_table) return;
  blocks_.erase(s.begin);
  s.in_table = false;
}

// ---- lent pages ----

bool arena::wants_lent(const block_request &r) {
  const block_request wanted = growth_for(r);
  if (!recalls_lent_ || !begin_search(wanted)) return false;
  for (const auto by : {loop_memory::by::addresses, loop_memory::by::amount}) {
    const loop_memory::place *const p = loop_.find(by);
    if (p == nullptr) continue;
    const extent *const first = extents.at(p->begin, p->at);
    const std::uint64_t end = p->begin + wanted.bytes;
    if (examine(first, p->begin, end, nullptr) == availability::lent) return true;
  }
  return false;
}

std::vector<arena::recall> arena::find_lent(const block_request &r, const held_arenas &others) {
  others.held.assume_held(*this);
  std::vector<recall> out;
  const block_request wanted = growth_for(r);
  if (!begin_search(wanted)) return out;
  for (const auto by : {loop_memory::by::addresses, loop_memory::by::amount}) {
    const loop_memory::place *const p = loop_.find(by);
    if (p == nullptr) continue;
    const extent *const first = extents.at(p->begin, p->at);
    const std::uint64_t end = p->begin + wanted.bytes;
    if (examine(first, p->begin, end, &others) != availability::available) continue;
    std::copy_if(recalls_.begin(), recalls_.end(), std::back_inserter(out),
                 [&](const recall &one) { return one.in != this; });
    break;
  }
  return out;
}

void arena::take_lent(std::vector<recall> &pages, const all_arena_locks &held) {
  for (const recall &p : pages) {
    held.assume_held(*p.in);
    p.in->extents.expect_recalls(pages.size());
  }
  for (recall &p : pages) {
    held.assume_held(*p.in);
    p.in->evict(p.owner, p.owner + p.bytes);
    p.at = p.in->extents.set_aside({device_address(p.owner), static_cast<std::size_t>(p.bytes)});
  }
}

void arena::put_back_lent(const std::vector<recall> &pages, const all_arena_locks &held) {
  for (const recall &p : pages) {
    held.assume_held(*p.in);
    p.in->extents.put_back(p.at);
  }
}

void arena::recall_lent(const std::vector<recall> &pages, const all_arena_locks &held) {
  held.assume_held(*this);
  extents.expect_recalls(pages.size());
  for (const recall &p : pages) {
    held.assume_held(*p.in);
    extents.recall_from(p.in->extents, p.at, p.alias);
    counters_.recalled += p.bytes / extents.page_bytes();
    if (history_ != nullptr && history_->enabled()) notify_recalled(p.alias, p.owner, p.bytes);
  }
}

void *arena::allocate_at_remembered(const block_request &r) {
  bool stop_at_lent = false;
  extent *const s = claim_remembered(growth_for(r), stop_at_lent);
  if (s == nullptr) return nullptr;
  return r.small() ? enter_slab(s, r) : enter(s, r);
}

}  // namespace stillmap
