#include "stillmap/allocators/engine/arena.h"

#include <algorithm>
#include <iterator>

#include "stillmap/allocators/engine/thread_stream.h"

namespace stillmap {

// ---- requests ----

void *arena::allocate(const block_request &r) {
  if (r.plainly_aligned()) {
    if (void *const block = blocks_.reuse(r)) return block;
  }
  return allocate_not_reused(r);
}

void *arena::allocate_not_reused(const block_request &r) {
  add_to_pattern(r);
  const block_request wanted = r.extent_request();
  const claimed there = claim_remembered(wanted, recalls_lent_);
  if (there.lent) return nullptr;
  extent *s = there.block;
  if (s == nullptr && r.plainly_aligned()) s = blocks_.take_cached(wanted.bytes);
  if (s == nullptr) s = find_extent(wanted, search_in::own_zone);
  return s != nullptr ? blocks_.enter_found(s, r) : nullptr;
}

void *arena::allocate_best_fit(const block_request &r, bool whole, search_in where) {
  blocks_.flush();
  if (r.small() && !whole) {
    if (void *const block = blocks_.find_in_slab(r)) return block;
  }
  extent *const s = find_extent(whole ? r : r.extent_request(), where);
  if (s == nullptr) return nullptr;
  return whole ? blocks_.enter(s, r) : blocks_.enter_found(s, r);
}

void *arena::allocate_at_remembered(const block_request &r) {
  extent *const s = claim_remembered(r.extent_request(), false).block;
  return s != nullptr ? blocks_.enter_found(s, r) : nullptr;
}

bool arena::record_use(std::uint64_t address, stream_ref other) {
  if (blocks_.usable_size(address) == 0) return false;
  if (!served_.serves(other)) blocks_.record_use(address, other);
  return true;
}

// In free memory, then in what was cached, too, which is merged for that. Where memory is short it is merged
// at once: blocks lie more densely, and fewer are found whole.
extent *arena::find_extent(const block_request &r, search_in where) {
  const address_zone own = zone_of(r.bytes);
  if (short_of_memory_ && blocks_.cached_bytes() != 0) blocks_.flush();
  for (const bool again : {false, true}) {
    if (again && !blocks_.has_cached()) break;
    if (again) blocks_.flush();
    if (extent *const s = blocks_.extents.place(r.bytes, r.alignment, own)) return s;
    if (!zoned_ || where != search_in::all_zones) continue;
    const address_zone other =
        own == address_zone::small ? address_zone::large : address_zone::small;
    if (extent *const s = blocks_.extents.place(r.bytes, r.alignment, other)) return s;
  }
  return nullptr;
}

// ---- what it knows of its program ----

inline void arena::add_to_pattern(const block_request &r) {
  if (in_chunks_) return;
  const block_counters &n = blocks_.counters();
  if (!pattern_.add(n.live, n.blocks(), r.bytes)) return;
  const bool repeats = blocks_.repeats();
  if (repeats ? pattern_.varies() : pattern_.repeats()) set_repeats(!repeats);
}

// What it moved until then does not tell what it will move.
void arena::set_repeats(bool on) {
  blocks_.set_repeats(on);
  moved_ = 0;
}

bool arena::searches_before_reclaim() const {
  const std::size_t pending = blocks_.uses.deferred();
  const block_counters &n = blocks_.counters();
  return pending == 0 || (!blocks_.repeats() && pending <= policy::max_pending_unasked &&
                          n.pending_free <= n.live / policy::pending_unasked_divisor);
}

void arena::age_moved() {
  const std::uint64_t allocations = blocks_.counters().allocations;
  if (allocations - halved_at_ <= policy::moved_half_life) return;
  moved_ /= 2;
  halved_at_ = allocations;
}

// ---- remembered places ----

// Calls visit(begin, the extent there) for the places that are remembered for the request, until it returns true.
template <class Visit>
void arena::each_remembered(const block_request &r, Visit visit) {
  if (!blocks_.repeats() || !r.plainly_aligned()) return;
  const loop_memory &loop = blocks_.search_loop(r);
  for (const auto by : {loop_memory::by::addresses, loop_memory::by::amount}) {
    const loop_memory::place *const p = loop.find(by);
    if (p != nullptr && visit(p->begin, blocks_.extents.at(p->begin, p->at))) return;
  }
}

arena::claimed arena::claim_remembered(const block_request &r, bool stop_at_lent) {
  claimed out;
  each_remembered(r, [&](std::uint64_t begin, extent *first) STILLMAP_REQUIRES(lock_) {
    if (first->cached && first->begin == begin && first->bytes == r.bytes) {
      blocks_.take_cached(*first);
      out.block = first;
      return true;
    }
    const availability now = claim_.examine(blocks_, first, begin, begin + r.bytes, nullptr);
    out.lent = stop_at_lent && now == availability::lent;
    if (now == availability::available) {
      out.block = claim_.take(blocks_, first, begin, r.bytes);
      notify_recalled(claim_.recalls());
    }
    return out.lent || out.block != nullptr;
  });
  return out;
}

void arena::notify_recalled(const std::vector<page_recall> &pages) const {
  if (history_ == nullptr || !history_->enabled()) return;
  for (const page_recall &p : pages) {
    history_->push({.action = history_action::page_move,
                    .address = p.alias,
                    .bytes = static_cast<std::size_t>(p.bytes),
                    .stream = thread_stream::reported(served_.stream),
                    .from = p.owner});
  }
}

// ---- lent pages ----

bool arena::wants_lent(const block_request &r) {
  const block_request wanted = r.extent_request();
  bool lent = false;
  if (!recalls_lent_) return false;
  each_remembered(wanted, [&](std::uint64_t begin, const extent *first) STILLMAP_REQUIRES(lock_) {
    lent =
        claim_.examine(blocks_, first, begin, begin + wanted.bytes, nullptr) == availability::lent;
    return lent;
  });
  return lent;
}

std::vector<page_recall> arena::find_lent(const block_request &r, const other_blocks &others) {
  std::vector<page_recall> out;
  const block_request wanted = r.extent_request();
  each_remembered(wanted, [&](std::uint64_t begin, const extent *first) STILLMAP_REQUIRES(lock_) {
    if (claim_.examine(blocks_, first, begin, begin + wanted.bytes, &others) !=
        availability::available) {
      return false;
    }
    std::copy_if(claim_.recalls().begin(), claim_.recalls().end(), std::back_inserter(out),
                 [&](const page_recall &one) { return one.in != nullptr; });
    return true;
  });
  return out;
}

void arena::recall_lent(const std::vector<page_recall> &pages) {
  blocks_.extents.expect_recalls(pages.size());
  for (const page_recall &p : pages) {
    blocks_.extents.recall_from(p.in->extents, p.at, p.alias);
    blocks_.counters().recalled += p.bytes / blocks_.extents.page_bytes();
  }
  notify_recalled(pages);
}

}  // namespace stillmap
