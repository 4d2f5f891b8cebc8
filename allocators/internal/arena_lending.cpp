// Pages that were lent to other arenas, and return to where they are still mapped.
// docs/allocator_growth.md#lent-pages
#include <algorithm>

#include "stillmap/allocators/internal/arena.h"
#include "stillmap/allocators/internal/arena_locks.h"

namespace stillmap {
namespace {

// So often is a size asked for in vain, each time with a search, before its placements wait until pages
// come into the arena.
constexpr std::uint32_t patience = 64;

}  // namespace

void arena::recall_lent_pages(bool on) {
  if (on) wake(want_lent_);
  recalls_lent_ = on;
}

bool arena::wants_lent(const block_request &r) {
  if (!recalls_lent_ || r.alignment != allocation_granule) return false;
  const size_bin *const of = placements_.find(growth_for(r).bytes);
  return of != nullptr && of->first_open() != size_bin::none;
}

std::vector<arena::lent_pages> arena::find_lent(const block_request &r,
                                                const address_directory &addresses,
                                                const all_arena_locks &held) {
  held.assume_held(*this);
  size_bin *const of = placements_.find(growth_for(r).bytes);
  if (of == nullptr) return {};
  std::vector<lent_pages> out;
  for (std::size_t i = of->first_open(); i != size_bin::none; i = of->first_open(i + 1)) {
    const std::uint64_t begin = of->all[i].begin;
    if (auto found = find_lent(begin, begin + of->bytes, addresses, held)) {
      out = std::move(*found);
      break;
    }
    if (of->in_vain >= patience) of->wait(i, want_lent_, of->all[i].at);
  }
  of->in_vain = out.empty() ? of->in_vain + 1 : 0;
  return out;
}

// Whether each part is free or cached.
bool arena::all_unused(std::uint64_t begin, std::uint64_t end) const {
  for (const extent *s = extents.at(begin); s != nullptr; s = s->next) {
    if (s->state != extent_state::free && !s->cached) return false;
    if (end <= s->end()) return true;
  }
  return false;
}

// nullopt: the placement is not available.
std::optional<std::vector<arena::lent_pages>> arena::find_lent(std::uint64_t begin,
                                                               std::uint64_t end,
                                                               const address_directory &addresses,
                                                               const all_arena_locks &held) {
  const std::uint64_t page = extents.page_bytes();
  const std::uint64_t low = begin & ~(page - 1), high = (end + page - 1) & ~(page - 1);
  std::vector<lent_pages> out;
  ++claims_;
  for (const extent *s = extents.at(begin); s != nullptr && s->begin < end; s = s->next) {
    if (s->state == extent_state::free || s->cached) continue;
    if (s->state != extent_state::aliased) return std::nullopt;
    const std::uint64_t last = std::min(high, s->end());
    for (std::uint64_t at = std::max(low, s->begin); at < last;) {
      arena *const in = addresses.at(extents.owner_of(at));
      if (in == nullptr) return std::nullopt;
      held.assume_held(*in);
      if (in != this && in->pinned) return std::nullopt;
      const extent_map::run there =
          extents.next_run(at, static_cast<std::size_t>((last - at) / page), claims_, in->extents);
      const std::uint64_t bytes = there.pages * page;
      if (bytes == 0 || (there.owner < high && there.owner + bytes > low) ||
          !in->all_unused(there.owner, there.owner + bytes)) {
        return std::nullopt;
      }
      if (in != this) out.push_back({at, there.owner, bytes, in, nullptr});
      at += bytes;
    }
  }
  return out;
}

void arena::take_lent(std::vector<lent_pages> &pages, const all_arena_locks &held) {
  for (const lent_pages &p : pages) {
    held.assume_held(*p.in);
    p.in->extents.expect_recalls(pages.size());
  }
  for (lent_pages &p : pages) {
    held.assume_held(*p.in);
    p.in->evict(p.owner, p.owner + p.bytes);
    p.taken = p.in->extents.set_aside({device_address(p.owner), static_cast<std::size_t>(p.bytes)});
  }
}

void arena::put_back_lent(const std::vector<lent_pages> &pages, const all_arena_locks &held) {
  for (const lent_pages &p : pages) {
    held.assume_held(*p.in);
    p.in->put_back(p.taken);
  }
}

void arena::recall_lent(const std::vector<lent_pages> &pages, const all_arena_locks &held) {
  held.assume_held(*this);
  extents.expect_recalls(pages.size());
  for (const lent_pages &p : pages) {
    held.assume_held(*p.in);
    extents.recall_from(p.in->extents, p.taken, p.alias);
    p.in->have_become_aliased();
    counters_.recalled += p.bytes / extents.page_bytes();
    if (history_ != nullptr && history_->enabled()) notify_recalled(p.alias, p.owner, p.bytes);
  }
  wake(want_recall_);
  wake(want_lent_);
}

void *arena::allocate_at_placement(const block_request &r) {
  flush();
  const block_request wanted = growth_for(r);
  extent *const s = find_cached_placement(wanted, at_lent::skip);
  if (s == nullptr) return nullptr;
  return r.small() ? enter_slab(s, r) : enter(s, r);
}

}  // namespace stillmap
