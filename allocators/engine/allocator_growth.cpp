// Growth: addresses and pages for a request that committed memory cannot serve.
// docs/allocator_growth.md
#include <algorithm>

#include "stillmap/allocators/engine/allocator_core.h"
#include "stillmap/allocators/engine/policy.h"
#include "stillmap/allocators/engine/room.h"
#include "stillmap/allocators/engine/thread_stream.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {
namespace {

// Whether more effort may help. It does not where the host's memory is short.
bool is_out_of_memory(const error &e) {
  return is_device_short(e) || e.is(errc::address_space_exhausted);
}

}  // namespace

// ---- levels of effort ----

// `pending`: the arena of the stream had pending blocks. Between two attempts no lock is held, and the
// program may release memory.
result<void *> allocator_core::grow(stream_ref s, const block_request &r, bool pending) {
  // Fails before creating every page that the device has.
  if (r.bytes > device_.total_memory().bytes()) {
    ++growths_;
    ++failed_;
    return make_error(errc::out_of_memory, "caching_allocator::allocate",
                      "the request is larger than the device's memory", r.bytes - r.slack,
                      device_.total_memory().bytes(), error_unit::bytes);
  }
  for (int round = 0;; ++round) {
    auto found = grow_once(s, r, round == 0, pending);
    if (found || !is_device_short(found.error())) return found;
    if (options_.on_out_of_memory && round != policy::max_callback_rounds &&
        options_.on_out_of_memory(static_cast<std::size_t>(r.bytes))) {
      continue;
    }
    ++failed_;
    // The error of the last attempt, which named the pages that were missing, or those of a slab.
    found.error().operation = "caching_allocator::allocate";
    found.error().value = r.bytes - r.slack;
    return found;
  }
}

result<void *> allocator_core::grow_once(stream_ref s, const block_request &r, bool first,
                                         bool pending) {
  const lock_guard growing(growth_mutex_);
  arena &a = arena_for(s);  // a private pool may serve the stream by now
  const bool reclaims = first && pending;
  if (reclaims) {
    STILLMAP_ASSIGN_OR_RETURN(void *const block, allocate_after_reclaim(a, r));
    if (block != nullptr) return block;
  }
  if (first) ++growths_;
  return find_memory(a, r, reclaims);
}

// `reclaimed`: the arena's pending frees have been.
result<void *> allocator_core::find_memory(arena &a, const block_request &r, bool reclaimed) {
  const auto try_free = [&](bool whole, search_in where) {
    const lock_guard lock(a.lock);
    return a.allocate_best_fit(r, whole, where);
  };
  const auto try_growing = [&](effort level, bool whole)
                               STILLMAP_REQUIRES(growth_mutex_) -> result<void *> {
    STILLMAP_ASSIGN_OR_RETURN(extent *const s, extend(a, whole ? r : arena::growth_for(r), level));
    const lock_guard lock(a.lock);
    return r.small() && !whole ? a.enter_slab(s, r) : a.enter(s, r);
  };

  const context_scope inside(device_.driver(), device_.context());
  STILLMAP_RETURN_IF_ERROR(inside.entered());
  const relaxed_capture_mode relaxed(device_.driver());
  STILLMAP_RETURN_IF_ERROR(relaxed.entered());
  reclaim(waiting_for::nothing, reclaimed ? &a : nullptr);
  if (void *const block = allocate_at_lent(a, r)) return block;
  if (void *const block = try_free(false, search_in::own_zone)) return block;
  auto found = try_growing(effort::ordinary, false);
  if (found || !is_out_of_memory(found.error())) return found;

  end_destroyed_streams();
  // First all free pages anywhere, then also those that become free once streams have passed.
  for (const bool wait : {false, true}) {
    const effort far = wait ? effort::waiting : effort::all;
    if (found.error().is(errc::address_space_exhausted)) {
      for (const auto &other : arenas_) drop_aliases(*other);
    }
    reclaim(wait ? waiting_for::everything : waiting_for::nothing);
    flush_all();
    if (void *const block = try_free(false, search_in::own_zone)) return block;
    found = try_growing(far, false);
    if (found || !is_out_of_memory(found.error())) return found;
    if (void *const block = try_free(false, search_in::all_zones)) return block;
    if (!r.small()) continue;
    // No room for a slab, but perhaps for the block alone.
    if (void *const block = try_free(true, search_in::all_zones)) return block;
    found = try_growing(far, true);
    if (found || !is_out_of_memory(found.error())) return found;
  }
  return found;
}

void allocator_core::age_moved(arena &a) {
  const lock_guard lock(a.lock);
  const std::uint64_t allocations = a.counted().allocations;
  if (allocations - a.halved_at <= policy::moved_half_life) return;
  a.moved /= 2;
  a.halved_at = allocations;
}

// Aliases fragment the free addresses.
void allocator_core::drop_aliases_if_fragmented(arena &a) {
  {
    const lock_guard lock(a.lock);
    const std::size_t most = policy::max_aliased(a.repeats(), a.extents.committed_bytes(), page());
    if (a.extents.aliased_bytes() <= most) return;
  }
  drop_aliases(a);  // fails while the stream captures; a later growth tries again
}

// Carves addresses, collects the pages they lack and maps them: all of it, or nothing.
result<extent *> allocator_core::extend(arena &a, const block_request &r, effort level) {
  age_moved(a);
  drop_aliases_if_fragmented(a);
  if (in_chunks()) return extend_by_chunk(a, r, level);
  auto made = extend_by_pages(a, r, level);
  // A capture began on another stream after that stream was asked. Now its pages stay.
  if (!made && made.error().is(errc::not_supported)) made = extend_by_pages(a, r, level);
  return made;
}

result<extent *> allocator_core::extend_by_pages(arena &a, const block_request &r, effort level) {
  auto place = carve(a, r, level);
  if (!place) {
    STILLMAP_RETURN_IF_ERROR(
        reserve_addresses(a, static_cast<std::size_t>(r.bytes + r.alignment), a.zone_of(r.bytes)));
    place = carve(a, r, level);
    if (!place) {
      return make_error(errc::address_space_exhausted, "caching_allocator::allocate",
                        "no free addresses are left for the request", r.bytes, 0,
                        error_unit::bytes);
    }
  }
  page_supply supply;
  supply.ordered_by_host = a.now().pinned || capturing(a);
  const status s = with_host_memory(
      "caching_allocator::allocate", [&]() STILLMAP_REQUIRES(growth_mutex_) -> status {
        STILLMAP_RETURN_IF_ERROR(collect_pages(a, place->missing.bytes / page(), level, supply));
        STILLMAP_RETURN_IF_ERROR(order_after_last_use(a, supply));
        expect_release(a, supply);
        return map(*place, supply);
      });
  if (!s) {
    put_back(supply);
    const lock_guard lock(a.lock);
    a.extents.abandon(*place);
    return tl::unexpected<error>(s.error());
  }
  notify_grown(a, *place, supply);
  release_old_mappings(a, *place, supply);
  moved_ += supply.moved_pages;
  created_ += supply.created.size();
  extent *block = nullptr;
  {
    const lock_guard lock(a.lock);
    block = a.extents.commit(*place);
    a.moved += supply.moved_pages;
  }
  note_peaks(live() + static_cast<std::size_t>(r.bytes));
  return block;
}

std::size_t allocator_core::ceiling() const {
  return std::min(limit.load(), device_.total_memory().bytes());
}

// ---- addresses ----

std::optional<extent_map::carved_extent> allocator_core::carve(arena &a, const block_request &r,
                                                               effort level) {
  const auto search =
      level == effort::ordinary ? extent_map::search::quick : extent_map::search::thorough;
  const lock_guard lock(a.lock);
  return a.extents.carve(r.bytes, r.alignment, search, a.zone_of(r.bytes));
}

// The more addresses there are, the less often a growth waits until an old mapping is undone: the
// first arenas get twice the device's memory. Addresses are not without limit, and cost host memory:
// the arenas of further streams, and the small blocks of all, begin with few and double what they
// have.
status allocator_core::reserve_addresses(arena &a, std::size_t bytes, address_zone zone) {
  const std::size_t unit = std::max(page(), address_directory::unit);
  const std::size_t least = round_up(bytes + page(), unit);
  std::size_t generous =
      std::min(2 * device_.total_memory().bytes(), device_.capabilities().largest_reservation / 2);
  if (a.id > policy::arenas_with_ample_addresses || zone == address_zone::small) {
    const lock_guard lock(a.lock);
    generous =
        std::min(generous, std::max(a.extents.reserved_bytes(zone), policy::first_reservation));
  }
  const std::size_t wanted = std::max(least, round_up(generous, unit));
  STILLMAP_ASSIGN_OR_RETURN(auto block, device_.space().reserve_up_to(
                                            wanted, least, unit, next_hint_, options_.tag, hold_));
  // The next ones follow, so that all lie where the user wants them.
  if (next_hint_.value() != 0) next_hint_ = block->range().end();
  enter(a, std::move(block), zone);
  return {};
}

// If the host has no memory for it, the addresses are given back.
void allocator_core::enter(arena &a, std::shared_ptr<address_block> block, address_zone zone) {
  const virtual_range range = block->range();
  addresses_.expect(range);
  {
    const lock_guard lock(a.lock);
    make_room(a.reservations);
    a.extents.add(range, false, zone);
    a.reservations.push_back(std::move(block));
    addresses_.add(range, &a);
  }
  notify_reserved(a, range);
}

// ---- pages ----

// Collects `pages` pages for `a`: creates up to the slack, then takes free pages of idle
// arenas, then creates up to the limit. Above effort::ordinary it takes every free page first; with
// ordered_by_host only idle ones, until effort::waiting.
status allocator_core::collect_pages(arena &a, std::size_t pages, effort level,
                                     page_supply &supply) {
  const std::size_t holding = committed();
  const std::size_t peak =
      std::max(live_peak_.load(), live() + pinned_free_bytes() + pages * page());
  const std::size_t soft = std::min(
      soft_limit.load(),
      peak + policy::slack(peak, page(), a.now().repeats, arenas_.size() == 1, moved_bytes()));
  const std::size_t most = limit;
  const auto room = [&](std::size_t under) {
    return under > holding ? (under - holding) / page() : std::size_t{0};
  };
  std::size_t missing = pages;
  const std::size_t freely =
      level == effort::ordinary ? std::min(pages, room(std::min(soft, most))) : 0;
  const auto take = [&](arena &victim) STILLMAP_REQUIRES(growth_mutex_) {
    if (missing > freely) missing -= take_free_pages(victim, missing - freely, supply);
  };
  // The addresses of the arena's own free pages may be part of a graph.
  if (!supply.ordered_by_host) take(a);
  note_memory_state(peak, missing > room(ceiling()));
  if (missing > freely) {
    for (const bool idle_ones : {true, false}) {
      for (const auto &other : arenas_) {
        if (missing == freely || other.get() == &a || !gives_pages(*other)) continue;
        if (level == effort::ordinary && !(idle_ones && is_idle(*other))) continue;
        if (level == effort::all && supply.ordered_by_host && !is_idle(*other)) continue;
        if (level != effort::ordinary && capturing(*other))
          continue;  // no event can be recorded on it
        if (lends(*other) || drop_aliases(*other)) take(*other);
      }
    }
  }
  if (missing == 0) return {};
  if (missing > room(most)) {
    return make_error(errc::out_of_memory, "caching_allocator::allocate",
                      "the limit of the allocator would be exceeded", missing * page(), most,
                      error_unit::bytes);
  }
  return create(a, missing, supply);
}

// ---- sums ----

std::size_t allocator_core::moved_bytes() const {
  std::uint64_t pages = 0;
  for (const auto &a : arenas_) {
    const lock_guard lock(a->lock);
    pages += a->moved;
  }
  return static_cast<std::size_t>(pages) * page();
}

std::size_t allocator_core::committed() const {
  std::size_t sum = 0;
  for (const auto &a : arenas_) {
    const lock_guard lock(a->lock);
    sum += a->extents.committed_bytes();
  }
  return sum;
}

std::size_t allocator_core::live() const {
  std::size_t sum = 0;
  for (const auto &a : arenas_) {
    const lock_guard lock(a->lock);
    sum += static_cast<std::size_t>(a->counted().live);
  }
  return sum;
}

}  // namespace stillmap
