#include "stillmap/allocators/engine/claim.h"

#include <algorithm>

#include "stillmap/allocators/engine/block_store.h"

namespace stillmap {
namespace {

bool all_unused(const extent *first, std::uint64_t end) {
  for (const extent *s = first; s != nullptr && s->is_unused(); s = s->next) {
    if (end <= s->end()) return true;
  }
  return false;
}

}  // namespace

availability claim::examine(block_store &of, const extent *first, std::uint64_t begin,
                            std::uint64_t end, const other_blocks *others) {
  const std::uint64_t page = of.extents.page_bytes();
  const std::uint64_t low = begin & ~(page - 1), high = (end + page - 1) & ~(page - 1);
  const virtual_range place{device_address(low), static_cast<std::size_t>(high - low)};
  ++scans_;
  recalls_.clear();
  availability worst = availability::available;
  for (const extent *s = first; s != nullptr; s = s->next) {
    if (s->state == extent_state::aliased) {
      const availability now =
          examine_aliased(of, std::max(low, s->begin), std::min(high, s->end()), place, others);
      if (now == availability::in_use) return now;
      worst = std::max(worst, now);
    } else if (!s->is_unused()) {
      return availability::in_use;
    }
    if (end <= s->end()) return worst;
  }
  return availability::in_use;
}

// The same of aliased pages: each must be unused where it is, which is outside of the place, and no two may be
// the same.
availability claim::examine_aliased(block_store &of, std::uint64_t at, std::uint64_t last,
                                    const virtual_range &place, const other_blocks *others) {
  extent_map &extents = of.extents;
  while (at < last) {
    const std::uint64_t owner = extents.owner_of(at);
    block_store *other = nullptr;
    if (!extents.contains(owner)) {
      if (others == nullptr) return availability::lent;
      other = others->at(owner);
      if (other == nullptr) return availability::in_use;
    }
    extent_map &there = other != nullptr ? other->extents : extents;
    const extent_map::run run = extents.next_run(
        at, static_cast<std::size_t>((last - at) / extents.page_bytes()), scans_, there);
    const std::uint64_t bytes = run.pages * extents.page_bytes();
    if (bytes == 0 ||
        (run.owner < place.end().value() && place.begin.value() < run.owner + bytes)) {
      return availability::in_use;
    }
    extent *const used = there.at(run.owner);
    if (!all_unused(used, run.owner + bytes)) return availability::in_use;
    recalls_.push_back({at, run.owner, bytes, other, used});
    at += bytes;
  }
  return availability::available;
}

extent *claim::take(block_store &of, extent *first, std::uint64_t begin, std::uint64_t bytes) {
  of.extents.expect_recalls(recalls_.size());
  if (!recalls_.empty()) first = perform_recalls(of, first, begin);
  for (extent *s = first;; s = s->next) {
    if (s->cached) of.detach_cached(*s, begin);
    if (begin + bytes <= s->end()) break;
  }
  return of.extents.place_at(first, begin, bytes);
}

// Returns the extent at `begin` now.
extent *claim::perform_recalls(block_store &of, extent *first, std::uint64_t begin) {
  extent *last = first;
  for (const page_recall &r : recalls_) {
    of.evict(r.owner, r.owner + r.bytes, r.at);
    const std::size_t pages = static_cast<std::size_t>(r.bytes) / of.extents.page_bytes();
    last = of.extents.recall(r.alias, pages, last, r.at);
    if (!first->contains(begin)) first = last;
    of.counters().recalled += pages;
  }
  return of.extents.at(begin, first);
}

}  // namespace stillmap
