// Pages that were lent to other arenas, and return to where they are still mapped.
// docs/allocator_growth.md#lent-pages
#include <algorithm>

#include "stillmap/allocators/internal/arena.h"
#include "stillmap/allocators/internal/arena_locks.h"

namespace stillmap {

bool arena::wants_lent(const block_request &r) {
  const block_request wanted = growth_for(r);
  if (!short_of_memory_ || !begin_search(wanted)) return false;
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
  bool lent = false;
  extent *const s = claim_remembered(growth_for(r), lent);
  if (s == nullptr) return nullptr;
  return r.small() ? enter_slab(s, r) : enter(s, r);
}

}  // namespace stillmap
