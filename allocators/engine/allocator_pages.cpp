// The pages of one growth: taken from arenas or created, ordered after their last use, mapped, and
// unmapped where they were. docs/allocator_growth.md#aliased-addresses
#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "stillmap/allocators/engine/allocator_core.h"
#include "stillmap/allocators/engine/policy.h"
#include "stillmap/allocators/engine/room.h"
#include "stillmap/allocators/engine/thread_stream.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {

// Before pages leave an arena they must be mapped at one address only. False: no event could be
// recorded, and nothing changed.
bool allocator_core::drop_aliases(arena &a) {
  {
    const lock_guard lock(a.lock);
    if (a.extents.aliased_bytes() == 0) return true;
  }
  auto after = fence_after(a);
  if (!after) return false;
  arena_returns::unmapping_extents going{{}, std::move(*after)};
  std::vector<arena_returns::unmapping_extents> &unmapping = returns_of(a).unmapping;
  make_room(unmapping);
  {
    const lock_guard lock(a.lock);
    a.extents.drop_aliases(going.extents);
  }
  give_up(going.extents, going.idle);
  unmapping.push_back(std::move(going));
  return true;
}

// Whether another arena may take pages from this one, and would find any. Makes no driver call.
bool allocator_core::gives_pages(arena &a) const {
  const lock_guard lock(a.lock);
  return !a.pinned && (a.extents.free_pages() != 0 || a.cached_bytes() >= page());
}

// Those taken are in `supply`, also if the host has no memory for more of them.
std::size_t allocator_core::take_free_pages(arena &victim, std::size_t pages, page_supply &supply) {
  std::vector<extent *> &out = supply.moved.emplace_back(taken_pages{.from = &victim}).extents;
  std::size_t got = 0;
  {
    const lock_guard lock(victim.lock);
    got = victim.extents.take_pages(pages, out);
    // Cached blocks are merged if they are large enough to matter.
    if (got < pages && victim.cached_bytes() >= page()) {
      victim.flush();
      got += victim.extents.take_pages(pages - got, out);
    }
  }
  if (got == 0) supply.moved.pop_back();
  supply.moved_pages += got;
  return got;
}

status allocator_core::create(arena &a, std::size_t pages, page_supply &supply) {
  const auto consumer = supply.ordered_by_host
                            ? std::nullopt
                            : std::optional(thread_stream::handle_of(a.now().stream));
  create_ahead(committed() + (supply.moved_pages + pages) * page());
  status s = pages_->acquire(pages, supply.created, consumer);
  if (!s && options_.create_ahead_bytes != 0) {
    pages_->keep_ready(0);  // what its thread has created meanwhile is needed now
    s = pages_->acquire(pages, supply.created, consumer);
  }
  if (!s) {
    // The rest of the device is in use by others.
    if (s.error().code != std::errc::not_enough_memory) {
      refused_beyond_ = committed();
      note_memory_state(live_peak_, true);
    }
    return s;
  }
  refused_beyond_ = SIZE_MAX;
  for (const page_ptr &p : supply.created) {
    const auto &home = p.pool();
    const auto &known = foreign_pools_;
    if (home != pages_ && std::find(known.begin(), known.end(), home) == known.end()) {
      foreign_pools_.push_back(home);
    }
  }
  return {};
}

// Has the pool's thread create pages for the next growth once this one, up to `committed`, has taken
// its own.
void allocator_core::create_ahead(std::size_t committed) {
  const std::size_t most = ceiling();
  const std::size_t room = most > committed ? most - committed : 0;
  pages_->keep_ready(std::min(options_.create_ahead_bytes, room) / page() * page());
}

// Orders later work on `a`'s stream behind the work queued on the streams that used the pages last.
// With ordered_by_host the host waits instead; at effort::ordinary only for streams seen idle.
status allocator_core::order_after_last_use(arena &a, page_supply &supply) {
  const stream_ref user = thread_stream::handle_of(a.now().stream);
  for (taken_pages &t : supply.moved) {
    if (t.from == &a && !t.leaves_allocator)
      continue;  // same stream: its order suffices, and the old mapping stays
    STILLMAP_ASSIGN_OR_RETURN(t.idle, fence_after(*t.from));
    if (t.from == &a) continue;
    if (!supply.ordered_by_host) {
      STILLMAP_RETURN_IF_ERROR(t.idle.make_wait(device_, user));
      continue;
    }
    if (const auto past = has_passed(t.idle, true); !past) return tl::unexpected(past.error());
  }
  return {};
}

// The host memory for release_old_mappings, which comes after the last step that can fail.
void allocator_core::expect_release(arena &a, page_supply &supply) {
  shared_->expect(supply.moved_pages);
  for (taken_pages &t : supply.moved) {
    if (t.from != &a) make_room(returns_of(*t.from).unmapping, supply.moved.size());
  }
}

// Maps moved pages at their new addresses before their old mappings are undone, so nothing waits.
status allocator_core::map(const extent_map::carved_extent &place, page_supply &supply) {
  remap_plan plan(access_);
  device_address at = place.missing.begin;
  for (const taken_pages &t : supply.moved) {
    for (const extent *s : t.extents) {
      plan.alias(at, s->range());
      at = at + s->bytes;
    }
  }
  for (page_ptr &p : supply.created) {
    plan.map(at, std::move(p));
    at = at + page();
  }
  return device_.space().apply(std::move(plan));
}

void allocator_core::put_back(page_supply &supply) noexcept {
  for (taken_pages &t : supply.moved) {
    const lock_guard lock(t.from->lock);
    for (extent *s : t.extents) t.from->extents.put_back(s);
  }
}

// Their mappings are undone when the fence has passed.
void allocator_core::give_up(const std::vector<extent *> &extents, const fence &idle) {
  address_space &space = device_.space();
  for (const extent *s : extents) {
    space.retire_again(space.block_at(s->range().begin), s->range(), idle);
  }
}

// Pages from the same arena, and from one that wants them back, stay mapped at their old addresses as
// aliases, to be recalled without mapping them. Other old mappings are undone when their streams have
// passed.
void allocator_core::release_old_mappings(arena &a, const extent_map::carved_extent &place,
                                          page_supply &supply) {
  std::uint64_t to = place.missing.begin.value();
  for (taken_pages &t : supply.moved) {
    const bool stay = t.from == &a || lends(*t.from);
    {
      const arena_pair_lock locks(*t.from, a);
      for (extent *s : t.extents) {
        const std::uint64_t bytes = s->bytes;
        if (stay) {
          t.from->extents.add_alias(s, to, a.extents);  // merges: `s` may be gone afterwards
        } else {
          t.from->extents.move_away(*s, to, a.extents);
        }
        to += bytes;
      }
    }
    if (stay) continue;
    give_up(t.extents, t.idle);
    returns_of(*t.from).unmapping.push_back({std::move(t.extents), std::move(t.idle)});
  }
}

// ---- lending ----

// Whether pages that leave for another arena stay mapped there.
bool allocator_core::lends(const arena &a) const {
  if (arenas_.size() > policy::max_lending_arenas) return false;
  const lock_guard lock(a.lock);
  return a.lends();
}

// `exhausted`: pages could not be created, or more than there may be are wanted. That stays so until there may be
// more.
void allocator_core::note_memory_state(std::size_t peak, bool exhausted) {
  if (exhausted) {
    exhausted_ceiling_ = ceiling();
  } else if (exhausted_ceiling_ < ceiling()) {
    exhausted_ceiling_ = 0;
  }
  const bool is_short = policy::is_short(std::min(ceiling(), refused_beyond_), peak, page());
  const bool recalls_lent =
      (is_short || exhausted_ceiling_ != 0) && arenas_.size() <= policy::max_lending_arenas;
  for (const auto &a : arenas_) {
    const lock_guard lock(a->lock);
    a->set_memory_state(is_short, recalls_lent);
  }
}

// Returns lent pages to the remembered place of the request, if they can return there, behind the work
// that used them. nullptr: there is none before one that needs no such pages.
void *allocator_core::allocate_at_lent(arena &a, const block_request &r) {
  if (arenas_.size() > policy::max_lending_arenas) return nullptr;
  {
    const lock_guard lock(a.lock);
    if (!a.wants_lent(r)) return nullptr;
  }
  if (!capturing(a)) return_lent(a, r);  // a pinned arena has lent none
  const lock_guard lock(a.lock);
  return a.allocate_at_remembered(r);
}

void allocator_core::return_lent(arena &a, const block_request &r) {
  std::vector<arena::recall> pages;
  {
    const all_arena_locks held(arenas_);
    pages = a.find_lent(r, {addresses_, held});
    if (pages.empty()) return;
    arena::take_lent(pages, held);
  }
  const auto put_back = [&]() STILLMAP_REQUIRES(growth_mutex_) {
    const all_arena_locks held(arenas_);
    arena::put_back_lent(pages, held);
  };
  try {
    const stream_ref user = thread_stream::handle_of(a.now().stream);
    std::array<bool, policy::max_lending_arenas> ordered{};
    for (const arena::recall &p : pages) {
      if (std::exchange(ordered[p.in->id - 1], true)) continue;
      const auto after = fence_after(*p.in);
      // A capture began on that stream: there are other pages.
      if (!after || !after->make_wait(device_, user)) {
        return put_back();
      }
    }
    const all_arena_locks held(arenas_);
    a.recall_lent(pages, held);
  } catch (const std::bad_alloc &) {
    put_back();
    throw;
  }
}

}  // namespace stillmap
