// Where the requests of a loop went before: whether such a place may be taken, and by which recalls. Pages that
// were lent to other arenas return to where they are still mapped.
// docs/allocator_growth.md#lent-pages
#include <algorithm>
#include <iterator>

#include "stillmap/allocators/engine/arena.h"
#include "stillmap/allocators/engine/arena_locks.h"

namespace stillmap {

// Calls visit(begin, the extent there) for the places that are remembered for the request, until it returns true.
template <class Visit>
void arena::each_remembered(const block_request &r, Visit visit) {
  if (!repeats_ || r.alignment != allocation_granule) return;
  loop_.begin_search(r.bytes, counters_.live, counters_.allocations - counters_.frees);
  for (const auto by : {loop_memory::by::addresses, loop_memory::by::amount}) {
    const loop_memory::place *const p = loop_.find(by);
    if (p != nullptr && visit(p->begin, extents.at(p->begin, p->at))) return;
  }
}

arena::claimed arena::claim_remembered(const block_request &r, bool stop_at_lent) {
  claimed out;
  each_remembered(r, [&](std::uint64_t begin, extent *first) STILLMAP_REQUIRES(lock) {
    if (first->cached && first->begin == begin && first->bytes == r.bytes) {
      uncache(*first);
      out.block = first;
      return true;
    }
    const availability now = examine(first, begin, begin + r.bytes, nullptr);
    out.lent = stop_at_lent && now == availability::lent;
    if (now == availability::available) out.block = claim(first, begin, r.bytes);
    return out.lent || out.block != nullptr;
  });
  return out;
}

// Requires: the latest examine() was of that range, and found it available. `first`: the extent at `begin`.
extent *arena::claim(extent *first, std::uint64_t begin, std::uint64_t bytes) {
  extents.expect_recalls(recalls_.size());
  if (!recalls_.empty()) first = perform_recalls(first, begin);
  for (extent *s = first;; s = s->next) {
    if (s->cached) detach_cached(*s, begin);
    if (begin + bytes <= s->end()) break;
  }
  return extents.place_at(first, begin, bytes);
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
    in->lock.assume_held();  // this one's, or one of others->held
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
  bool lent = false;
  if (!recalls_lent_) return false;
  each_remembered(wanted, [&](std::uint64_t begin, const extent *first) STILLMAP_REQUIRES(lock) {
    lent = examine(first, begin, begin + wanted.bytes, nullptr) == availability::lent;
    return lent;
  });
  return lent;
}

std::vector<arena::recall> arena::find_lent(const block_request &r, const held_arenas &others) {
  others.held.assume_held(*this);
  std::vector<recall> out;
  const block_request wanted = growth_for(r);
  each_remembered(wanted, [&](std::uint64_t begin, const extent *first) STILLMAP_REQUIRES(lock) {
    if (examine(first, begin, begin + wanted.bytes, &others) != availability::available) {
      return false;
    }
    std::copy_if(recalls_.begin(), recalls_.end(), std::back_inserter(out),
                 [&](const recall &one) { return one.in != this; });
    return true;
  });
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
  extent *const s = claim_remembered(growth_for(r), false).block;
  return s != nullptr ? enter_found(s, r) : nullptr;
}

}  // namespace stillmap
