#include "stillmap/allocators/engine/page_source.h"

#include <algorithm>
#include <utility>

#include "stillmap/allocators/engine/heap_report.h"
#include "stillmap/allocators/engine/policy.h"
#include "stillmap/allocators/engine/thread_stream.h"
#include "stillmap/allocators/internal/room.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

namespace stillmap {

page_source::page_source(heap &h, stream_tracker &streams, reclaimer &r,
                         std::shared_ptr<page_pool> pages, std::vector<access_grant> access)
    : heap_(h),
      streams_(streams),
      reclaimer_(r),
      mover_(h, streams, std::move(access)),
      pages_(std::move(pages)),
      hold_(std::make_shared<suspension_hold>(h.observers.history)),
      next_hint_(h.options.hint) {}

result<extent *> page_source::extend(arena &a, const block_request &r, effort level) {
  {
    const lock_guard lock(a.lock());
    a.age_moved();
  }
  mover_.drop_aliases_if_many(a);
  missing_ = 0;
  auto made = extend_once(a, r, level);
  // A capture began on another stream after that stream was asked. Now its pages stay.
  if (!made && made.error().is(errc::not_supported)) made = extend_once(a, r, level);
  return made;
}

// Carves addresses, collects the pages they lack and maps them.
result<extent *> page_source::extend_once(arena &a, const block_request &r, effort level) {
  auto place = carve(a, r, level);
  if (!place) {
    STILLMAP_RETURN_IF_ERROR(
        reserve_addresses(a, static_cast<std::size_t>(r.bytes + r.alignment), a.zone_of(r.bytes)));
    place = carve(a, r, level);
    if (!place) {
      return make_error(errc::address_space_exhausted, "no free addresses are left for the request",
                        r.bytes, 0, error_unit::bytes);
    }
  }
  page_supply supply;
  supply.ordered_by_host = a.service_now().pinned || streams_.capturing(a);
  const status s = with_host_memory([&]() STILLMAP_REQUIRES(growth) -> status {
    STILLMAP_RETURN_IF_ERROR(
        collect_pages(a, place->missing.bytes / heap_.page_bytes, level, supply));
    STILLMAP_RETURN_IF_ERROR(mover_.order_after_last_use(a, supply));
    mover_.expect_release(a, supply);
    return mover_.map(*place, supply);
  });
  if (!s) {
    page_mover::put_back(supply);
    const lock_guard lock(a.lock());
    a.extents().abandon(*place);
    return tl::unexpected<error>(s.error());
  }
  notify_grown(a, *place, supply);
  mover_.release_old_mappings(a, *place, supply);
  heap_.counters.moved += supply.moved_pages;
  heap_.counters.created += supply.created.size();
  extent *block = nullptr;
  {
    const lock_guard lock(a.lock());
    block = a.extents().commit(*place);
    a.note_moved(supply.moved_pages);
  }
  heap_.note_peaks(heap_.live() + static_cast<std::size_t>(r.bytes));
  return block;
}

// ---- addresses ----

std::optional<extent_map::carved_extent> page_source::carve(arena &a, const block_request &r,
                                                            effort level) {
  const auto search =
      level == effort::ordinary ? extent_map::search::quick : extent_map::search::thorough;
  const lock_guard lock(a.lock());
  return a.extents().carve(r.bytes, r.alignment, search, a.zone_of(r.bytes));
}

// The more addresses there are, the less often a growth waits until an old mapping is undone: the
// first arenas get twice the device's memory. Addresses are not without limit, and cost host memory:
// the arenas of further streams, and the small blocks of all, begin with few and double what they
// have.
status page_source::reserve_addresses(arena &a, std::size_t bytes, address_zone zone) {
  const std::size_t unit = std::max(heap_.page_bytes, address_directory::unit);
  const std::size_t least = round_up(bytes + heap_.page_bytes, unit);
  std::size_t generous = std::min(2 * heap_.device.total_memory().bytes(),
                                  heap_.device.capabilities().largest_reservation / 2);
  if (a.id > policy::arenas_with_ample_addresses || zone == address_zone::small) {
    const lock_guard lock(a.lock());
    generous =
        std::min(generous, std::max(a.extents().reserved_bytes(zone), policy::first_reservation));
  }
  const std::size_t wanted = std::max(least, round_up(generous, unit));
  STILLMAP_ASSIGN_OR_RETURN(auto block,
                            heap_.device.space().reserve_up_to(wanted, least, unit, next_hint_,
                                                               heap_.options.tag, hold_));
  // The next ones follow, so that all lie where the user wants them.
  if (next_hint_.value() != 0) next_hint_ = block->range().end();
  enter(a, std::move(block), zone);
  return {};
}

// If the host has no memory for it, the addresses are given back.
void page_source::enter(arena &a, std::shared_ptr<address_block> block, address_zone zone) {
  const virtual_range range = block->range();
  heap_.addresses.expect(range);
  make_room(reservations_);
  {
    const lock_guard lock(a.lock());
    a.extents().add(range, false, zone);
    heap_.addresses.add(range, &a);
  }
  reservations_.push_back(std::move(block));
  heap_.observers.addresses_reserved(a, range);
}

// ---- pages ----

// Collects `pages` pages for `a`: creates up to the slack, then takes free pages of idle
// arenas, then creates up to the limit. Above effort::ordinary it takes every free page first; with
// ordered_by_host only idle ones, until effort::waiting.
status page_source::collect_pages(arena &a, std::size_t pages, effort level, page_supply &supply) {
  const std::size_t holding = heap_.committed();
  const std::size_t peak =
      std::max(heap_.counters.live_peak.load(),
               heap_.live() + heap_.pinned_free_bytes() + pages * heap_.page_bytes);
  const std::size_t soft = std::min(
      heap_.soft_limit.load(), peak + policy::slack(peak, heap_.page_bytes, a.repeats(),
                                                    heap_.arenas.size() == 1, heap_.moved_bytes()));
  const std::size_t most = heap_.limit;
  const auto room = [&](std::size_t under) {
    return under > holding ? (under - holding) / heap_.page_bytes : std::size_t{0};
  };
  std::size_t missing = pages;
  const std::size_t freely =
      level == effort::ordinary ? std::min(pages, room(std::min(soft, most))) : 0;
  const auto take = [&](arena &victim) STILLMAP_REQUIRES(growth) {
    if (missing > freely) missing -= mover_.take_free_pages(victim, missing - freely, supply);
  };
  // The addresses of the arena's own free pages may be part of a graph.
  if (!supply.ordered_by_host) take(a);
  note_memory_state(peak, missing > room(heap_.ceiling()));
  for (const auto &other : heap_.arenas) {
    if (missing <= freely) break;
    if (other.get() == &a || !mover_.gives_pages(*other)) continue;
    const bool only_idle =
        level == effort::ordinary || (level == effort::all && supply.ordered_by_host);
    if (only_idle && !streams_.is_idle(*other)) continue;
    if (level != effort::ordinary && streams_.capturing(*other)) continue;  // takes no event
    if (mover_.lends(*other) || mover_.drop_aliases(*other)) take(*other);
  }
  if (missing == 0) return {};
  if (missing > room(most)) {
    return make_error(errc::out_of_memory, "the limit of the allocator would be exceeded",
                      missing * heap_.page_bytes, most, error_unit::bytes);
  }
  return create(a, missing, supply);
}

status page_source::create(arena &a, std::size_t pages, page_supply &supply) {
  const auto consumer = supply.ordered_by_host
                            ? std::nullopt
                            : std::optional(thread_stream::handle_of(a.service_now().stream));
  create_ahead(heap_.committed() + (supply.moved_pages + pages) * heap_.page_bytes);
  status s = pages_->acquire(pages, supply.created, consumer);
  if (!s && heap_.options.create_ahead_bytes != 0) {
    pages_->keep_ready(0);  // what its thread has created meanwhile is needed now
    s = pages_->acquire(pages, supply.created, consumer);
  }
  if (!s) {
    // The rest of the device is in use by others.
    if (is_device_short(s.error())) missing_ = pages * heap_.page_bytes;
    if (s.error().code != std::errc::not_enough_memory) {
      refused_beyond_ = heap_.committed() + supply.moved_pages * heap_.page_bytes;
      note_memory_state(heap_.counters.live_peak, true);
    }
    return s;
  }
  refused_beyond_ = SIZE_MAX;
  keep_alive(supply.created);
  return {};
}

// The pools that own the pages. May run out.
void page_source::keep_alive(const std::vector<page_ptr> &created) {
  for (const page_ptr &p : created) {
    const auto &home = p.pool();
    const auto &known = foreign_pools_;
    if (home != pages_ && std::find(known.begin(), known.end(), home) == known.end()) {
      foreign_pools_.push_back(home);
    }
  }
}

// Has the pool's thread create pages for the next growth once this one, up to `committed`, has taken
// its own.
void page_source::create_ahead(std::size_t committed) {
  const std::size_t most = heap_.ceiling();
  const std::size_t room = most > committed ? most - committed : 0;
  pages_->keep_ready(std::min(heap_.options.create_ahead_bytes, room) / heap_.page_bytes *
                     heap_.page_bytes);
}

// `exhausted`: pages could not be created, or more than there may be are wanted. That stays so until there may be
// more.
void page_source::note_memory_state(std::size_t peak, bool exhausted) {
  if (exhausted) {
    exhausted_ceiling_ = heap_.ceiling();
  } else if (exhausted_ceiling_ < heap_.ceiling()) {
    exhausted_ceiling_ = 0;
  }
  const bool is_short =
      policy::is_short(std::min(heap_.ceiling(), refused_beyond_), peak, heap_.page_bytes);
  const bool recalls_lent =
      (is_short || exhausted_ceiling_ != 0) && heap_.arenas.size() <= policy::max_lending_arenas;
  for (const auto &a : heap_.arenas) {
    const lock_guard lock(a->lock());
    a->set_memory_state(is_short, recalls_lent);
  }
}

void page_source::notify_grown(const arena &a, const extent_map::carved_extent &place,
                               const page_supply &supply) {
  heap_observers &observers = heap_.observers;
  if (!observers.enabled()) return;
  device_address at = place.missing.begin;
  for (const taken_pages &t : supply.moved) {
    for (const extent *s : t.extents) {
      observers.page_moved(a, at.value(), s->begin, static_cast<std::size_t>(s->bytes));
      at = at + s->bytes;
    }
  }
  observers.pages_mapped(a, {at, supply.created.size() * heap_.page_bytes});
}

void page_source::free_addresses() {
  for (const auto &a : heap_.arenas) mover_.drop_aliases(*a);
}

// ---- releasing pages to the device ----

result<release_report> page_source::trim(std::size_t keep) {
  std::vector<arena *> giving;
  // Pages of private pools stay. No event can be recorded on a capturing stream, so its pages stay
  // too.
  for (const auto &a : heap_.arenas) {
    if (!a->service_now().pinned && !streams_.capturing(*a)) giving.push_back(a.get());
  }
  for (arena *const a : giving) mover_.drop_aliases(*a);
  // Where no event could be recorded on the stream.
  std::vector<arena *> aliased;
  for (const auto &a : heap_.arenas) {
    const lock_guard lock(a->lock());
    if (a->extents().aliased_bytes() != 0) aliased.push_back(a.get());
  }
  reclaimer_.reclaim(waiting_for::destroyed_streams);
  heap_.flush_all();
  std::size_t free_pages = 0;
  for (const arena *const a : giving) {
    const lock_guard lock(a->lock());
    free_pages += a->extents().free_pages();
  }
  std::size_t surplus = free_pages - std::min(free_pages, keep / heap_.page_bytes);
  std::size_t given = 0;
  status outcome;
  for (arena *const a : giving) {
    if (surplus == 0) break;
    std::size_t bytes = 0;
    if (status s = retire(*a, surplus, aliased, bytes); !s) outcome = s;
    given += bytes;
    surplus -= bytes / heap_.page_bytes;
  }
  reclaimer_.reclaim(waiting_for::destroyed_streams);
  if (!outcome) return tl::unexpected<error>(outcome.error());
  if (heap_.options.create_ahead_bytes != 0) {
    pages_->keep_ready(0);
    STILLMAP_ASSIGN_OR_RETURN(const physical_size ahead, pages_->trim(0));
    given += ahead.bytes();
  }
  return report_release(heap_, *this, given, giving);
}

// Releases up to `pages` whole free pages of `a`. Pages that cannot be released stay. `aliased`: the
// arenas that still have aliases.
status page_source::retire(arena &a, std::size_t pages, const std::vector<arena *> &aliased,
                           std::size_t &bytes) {
  const auto has_aliases = [&](const arena *other) {
    const arena_pair_lock locks(*other, a);
    return other == &a || other->extents().has_aliases_of(a.extents());
  };
  if (std::any_of(aliased.begin(), aliased.end(), has_aliases)) {
    return make_error(errc::busy, "a stream that captures a graph delays the release");
  }
  page_supply supply;
  const status ready = with_host_memory([&]() STILLMAP_REQUIRES(growth) -> status {
    if (mover_.take_free_pages(a, pages, supply) == 0) return {};
    supply.moved.front().leaves_allocator = true;
    make_room(heap_.returns_of(a).unmapping);
    return mover_.order_after_last_use(a, supply);
  });
  if (!ready) {
    page_mover::put_back(supply);
    // The stream has begun to capture since trim() asked: its pages stay, as those of the others that do.
    return ready.error().is(errc::not_supported) ? status() : ready;
  }
  status outcome;
  for (taken_pages &t : supply.moved) {
    std::erase_if(t.extents, [&](extent *s) {
      const status gone = with_host_memory([&] {
        return heap_.device.space().retire(heap_.device.space().block_at(device_address(s->begin)),
                                           s->range(), t.idle);
      });
      if (gone) {
        {
          const lock_guard lock(a.lock());
          a.extents().leave(*s);
        }
        bytes += static_cast<std::size_t>(s->bytes);
        heap_.observers.pages_unmapped(a, s->range());
        heap_.counters.released += s->bytes / heap_.page_bytes;
        return false;
      }
      outcome = gone;
      const lock_guard lock(a.lock());
      a.extents().put_back(s);
      return true;
    });
    if (t.extents.empty()) continue;
    heap_.returns_of(a).unmapping.push_back({std::move(t.extents), std::move(t.idle)});
  }
  return outcome;
}

std::size_t page_source::releasable_bytes(arena &a) {
  const lock_guard lock(a.lock());
  return a.extents().free_pages() * heap_.page_bytes;
}

// ---- destruction ----

void page_source::release_all() noexcept {
  hold_->detach();
  bool any = false;
  for (const auto &a : heap_.arenas) {
    const lock_guard lock(a->lock());
    any = any || a->extents().committed_bytes() != 0 || a->extents().aliased_bytes() != 0 ||
          !heap_.returns_of(*a).unmapping.empty();
  }
  if (!any) return;
  const relaxed_capture_mode relaxed(heap_.device.driver());
  report_if_failed(relaxed.entered());
  report_if_failed(streams_.wait_for_device());
  for (const auto &a : heap_.arenas) reclaimer_.reclaim_unmapping(*a, true);
  for (const auto &block : reservations_) {
    report_if_failed(heap_.device.space().unmap(block->range()));
  }
}

}  // namespace stillmap
