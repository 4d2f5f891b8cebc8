#include "stillmap/allocators/engine/page_mover.h"

#include <array>
#include <new>
#include <utility>

#include "stillmap/allocators/engine/policy.h"
#include "stillmap/allocators/engine/thread_stream.h"
#include "stillmap/allocators/internal/room.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {
namespace {

// All arenas, by their addresses, with their locks held.
class held_arenas final : public other_blocks {
 public:
  held_arenas(const address_directory &addresses, const all_arena_locks &held)
      : addresses_(addresses), held_(held) {}
  block_store *at(std::uint64_t address) const override {
    arena *const a = addresses_.at(address);
    if (a == nullptr) return nullptr;
    held_.assume_held(*a);
    return a->service_locked().pinned ? nullptr : &a->blocks();
  }

 private:
  const address_directory &addresses_;
  const all_arena_locks &held_;
};

}  // namespace

bool page_mover::drop_aliases(arena &a) {
  {
    const lock_guard lock(a.lock());
    if (a.extents().aliased_bytes() == 0) return true;
  }
  auto after = streams_.fence_after(a);
  if (!after) return false;
  arena_returns::unmapping_extents going{{}, std::move(*after)};
  std::vector<arena_returns::unmapping_extents> &unmapping = heap_.returns_of(a).unmapping;
  make_room(unmapping);
  {
    const lock_guard lock(a.lock());
    a.extents().drop_aliases(going.extents);
  }
  give_up(going.extents, going.idle);
  unmapping.push_back(std::move(going));
  return true;
}

void page_mover::drop_aliases_if_many(arena &a) {
  {
    const lock_guard lock(a.lock());
    const std::size_t most =
        policy::max_aliased(a.blocks().repeats(), a.extents().committed_bytes(), heap_.page_bytes);
    if (a.extents().aliased_bytes() <= most) return;
  }
  drop_aliases(a);  // fails while the stream captures; a later growth tries again
}

bool page_mover::gives_pages(arena &a) const {
  const lock_guard lock(a.lock());
  return !a.service_locked().pinned &&
         (a.extents().free_pages() != 0 || a.blocks().cached_bytes() >= heap_.page_bytes);
}

std::size_t page_mover::take_free_pages(arena &victim, std::size_t pages, page_supply &supply) {
  std::vector<extent *> &out = supply.moved.emplace_back(taken_pages{.from = &victim}).extents;
  std::size_t got = 0;
  {
    const lock_guard lock(victim.lock());
    got = victim.extents().take_pages(pages, out);
    // Cached blocks are merged if they are large enough to matter.
    if (got < pages && victim.blocks().cached_bytes() >= heap_.page_bytes) {
      victim.blocks().flush();
      got += victim.extents().take_pages(pages - got, out);
    }
  }
  if (got == 0) supply.moved.pop_back();
  supply.moved_pages += got;
  return got;
}

status page_mover::order_after_last_use(arena &a, page_supply &supply) {
  const stream_ref user = thread_stream::handle_of(a.service_now().stream);
  for (taken_pages &t : supply.moved) {
    if (t.from == &a && !t.leaves_allocator)
      continue;  // same stream: its order suffices, and the old mapping stays
    STILLMAP_ASSIGN_OR_RETURN(t.idle, streams_.fence_after(*t.from));
    if (t.from == &a) continue;
    if (!supply.ordered_by_host) {
      STILLMAP_RETURN_IF_ERROR(t.idle.make_wait(heap_.device, user));
      continue;
    }
    if (const auto past = streams_.has_passed(t.idle, true); !past)
      return tl::unexpected(past.error());
  }
  return {};
}

void page_mover::expect_release(arena &a, page_supply &supply) {
  heap_.shared->expect(supply.moved_pages);
  for (taken_pages &t : supply.moved) {
    if (t.from != &a) make_room(heap_.returns_of(*t.from).unmapping, supply.moved.size());
  }
}

status page_mover::map(const extent_map::carved_extent &place, page_supply &supply) {
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
    at = at + heap_.page_bytes;
  }
  return heap_.device.space().apply(std::move(plan));
}

void page_mover::put_back(page_supply &supply) noexcept {
  for (taken_pages &t : supply.moved) {
    const lock_guard lock(t.from->lock());
    for (extent *s : t.extents) t.from->extents().put_back(s);
  }
}

// Their mappings are undone when the fence has passed.
void page_mover::give_up(const std::vector<extent *> &extents, const fence &idle) {
  address_space &space = heap_.device.space();
  for (const extent *s : extents) {
    space.retire_again(space.block_at(s->range().begin), s->range(), idle);
  }
}

// Pages from the same arena, and from one that wants them back, stay mapped at their old addresses as
// aliases, to be recalled without mapping them. Other old mappings are undone when their streams have
// passed.
void page_mover::release_old_mappings(arena &a, const extent_map::carved_extent &place,
                                      page_supply &supply) {
  std::uint64_t to = place.missing.begin.value();
  for (taken_pages &t : supply.moved) {
    // A request may have changed what lends() said when the pages were taken; expect_release covers both.
    const bool stay = t.from == &a || lends(*t.from);
    {
      const arena_pair_lock locks(*t.from, a);
      for (extent *s : t.extents) {
        const std::uint64_t bytes = s->bytes;
        if (stay) {
          t.from->extents().add_alias(s, to, a.extents());  // merges: `s` may be gone afterwards
        } else {
          t.from->extents().move_away(*s, to, a.extents());
        }
        to += bytes;
      }
    }
    if (stay) continue;
    give_up(t.extents, t.idle);
    heap_.returns_of(*t.from).unmapping.push_back({std::move(t.extents), std::move(t.idle)});
  }
}

// ---- lending ----

bool page_mover::lends(const arena &a) const {
  if (heap_.arenas.size() > policy::max_lending_arenas) return false;
  const lock_guard lock(a.lock());
  return a.may_lend();
}

void *page_mover::allocate_at_lent(arena &a, const block_request &r) {
  if (heap_.arenas.size() > policy::max_lending_arenas) return nullptr;
  {
    const lock_guard lock(a.lock());
    if (!a.wants_lent(r)) return nullptr;
  }
  if (!streams_.capturing(a)) return_lent(a, r);  // a pinned arena has lent none
  const lock_guard lock(a.lock());
  return a.allocate_at_remembered(r);
}

// Sets aside where they are what a remembered place lacks.
std::vector<page_recall> page_mover::take_lent(arena &a, const block_request &r) {
  const all_arena_locks held(heap_.arenas);
  held.assume_held(a);
  std::vector<page_recall> pages = a.find_lent(r, held_arenas(heap_.addresses, held));
  for (const page_recall &p : pages) p.in->extents.expect_recalls(pages.size());
  for (page_recall &p : pages) {
    p.in->evict(p.owner, p.owner + p.bytes);
    p.at = p.in->extents.set_aside({device_address(p.owner), static_cast<std::size_t>(p.bytes)});
  }
  return pages;
}

void page_mover::return_lent(arena &a, const block_request &r) {
  std::vector<page_recall> pages = take_lent(a, r);
  if (pages.empty()) return;
  const auto put_back = [&]() STILLMAP_REQUIRES(growth) {
    const all_arena_locks held(heap_.arenas);
    for (const page_recall &p : pages) p.in->extents.put_back(p.at);
  };
  try {
    const stream_ref user = thread_stream::handle_of(a.service_now().stream);
    std::array<bool, policy::max_lending_arenas> ordered{};
    for (const page_recall &p : pages) {
      const arena &in = *heap_.addresses.at(p.owner);
      if (std::exchange(ordered[in.id - 1], true)) continue;
      const auto after = streams_.fence_after(in);
      // A capture began on that stream: there are other pages.
      if (!after || !after->make_wait(heap_.device, user)) {
        return put_back();
      }
    }
    const all_arena_locks held(heap_.arenas);
    held.assume_held(a);
    a.recall_lent(pages);
  } catch (const std::bad_alloc &) {
    put_back();
    throw;
  }
}

}  // namespace stillmap
