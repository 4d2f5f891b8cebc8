// Finding memory for a request that nothing backed can serve: which addresses, which pages, and how
// far to go for them. docs/design.md#the-caching-allocator
#include <algorithm>

#include "stillmap/allocators/internal/allocator_core.h"

namespace stillmap {
namespace {

constexpr std::size_t GiB = std::size_t{1} << 30;
// Addresses that an arena has beyond its memory, before those not in use are given up.
constexpr std::size_t lent_per_backed = 3;
// What repeats itself has moved all it has three times at most before it needs to no more; and one
// that begins to is trusted again after so many allocations.
constexpr std::uint64_t restless_from = 6, restless_half_life = 1 << 20;
// A callback that always answers yes does not keep a request forever.
constexpr int callback_rounds = 16;

// Nothing was created for so many allocations: the program repeats itself.
constexpr std::uint64_t settled_after = 1 << 15;

// Free memory that is tolerated beyond the most that was ever in use, before moving pages comes
// before creating them. Within a stream, pages that were moved come back without a driver call:
// next to none, except where blocks are few pages large and the edges that moving leaves cost more
// than it saves. Between streams pages do not come back by themselves, and need room to settle; so
// they do where a program does not repeat itself, while there is plenty.
std::size_t tolerated(std::size_t live_peak, bool settles, std::size_t page) {
  const std::size_t share = live_peak < 2 * GiB ? live_peak / 16 : settles ? 0 : live_peak / 24;
  return std::max(share, 2 * page);
}

bool is_short(const error &e) {
  return e.is(errc::out_of_memory) || e.is(errc::address_space_exhausted);
}

}  // namespace

// ---- how far to go ----

result<void *> caching_allocator::core::grow(arena &a, const block_request &r,
                                             std::unique_lock<std::mutex> &growing) {
  ++growths_;
  // Not after having created all pages there are.
  if (r.bytes > device_.total_memory().bytes()) {
    ++failed_;
    return make_error(errc::out_of_memory, "caching_allocator::allocate",
                  "the device has not as much", r.bytes, device_.total_memory().bytes());
  }
  for (int round = 0;; ++round) {
    auto found = find_memory(a, r);
    if (found || !found.error().is(errc::out_of_memory)) return found;
    if (!options_.on_out_of_memory || round == callback_rounds) {
      ++failed_;
      return found;
    }
    growing.unlock();
    const bool again = options_.on_out_of_memory(static_cast<std::size_t>(r.bytes));
    growing.lock();
    if (!again) {
      ++failed_;
      return found;
    }
  }
}

result<void *> caching_allocator::core::find_memory(arena &a, const block_request &r) {
  const auto try_free = [&](bool whole) {
    const std::lock_guard lock(a.lock);
    return a.allocate_thoroughly(r, whole);
  };
  const auto try_growing = [&](effort how, bool whole) -> result<void *> {
    auto s = extend(a, whole ? r : arena::growth_for(r), how);
    if (!s) return tl::unexpected<error>(s.error());
    const std::lock_guard lock(a.lock);
    return r.small() && !whole ? a.enter_slab(*s, r) : a.enter(*s, r);
  };

  const relaxed_capture_mode relaxed(device_.driver());
  if (!relaxed.entered()) return tl::unexpected<error>(relaxed.entered().error());
  reclaim(false);
  if (void *const block = try_free(false)) return block;
  auto found = try_growing(effort::ordinary, false);
  if (found || !is_short(found.error())) return found;

  // Whatever is free anywhere, and then whatever will be once streams have got there.
  for (const bool wait : {false, true}) {
    const effort far = wait ? effort::waiting : effort::all;
    if (found.error().is(errc::address_space_exhausted)) {
      for (const auto &other : arenas_) forget_lent(*other);
    }
    reclaim(wait);
    flush_all();
    if (void *const block = try_free(false)) return block;
    found = try_growing(far, false);
    if (found || !is_short(found.error())) return found;
    if (!r.small()) continue;
    // No room for a slab; for the block alone there may be.
    if (void *const block = try_free(true)) return block;
    found = try_growing(far, true);
    if (found || !is_short(found.error())) return found;
  }
  return found;
}

// A program is trusted to repeat itself until it has moved several times what it has.
bool caching_allocator::core::repeats_itself(arena &a) {
  const std::lock_guard lock(a.lock);
  if (a.counted().allocations - a.halved_at > restless_half_life) {
    a.moved /= 2;
    a.halved_at = a.counted().allocations;
  }
  return a.moved * page() <= restless_from * a.books.backed_bytes();
}

// What does not repeat itself maps its pages at ever more addresses, and what is lent cuts up those
// that are left.
void caching_allocator::core::forget_if_scattered(arena &a) {
  const bool trusted = repeats_itself(a);
  {
    const std::lock_guard lock(a.lock);
    const std::size_t most = trusted ? lent_per_backed * a.books.backed_bytes() + GiB : GiB / 4;
    if (a.books.lent_bytes() <= most) return;
  }
  forget_lent(a);  // not while it captures; then later
}

// Sets a place aside, finds the pages that it lacks, maps them there: all of it, or nothing.
result<segment *> caching_allocator::core::extend(arena &a, const block_request &r, effort how) {
  forget_if_scattered(a);
  unpack_if_settled(a);
  if (in_chunks()) return extend_by_chunk(a, r, how);
  auto place = carve(a, r, how);
  if (!place) {
    if (status s = reserve_addresses(a, static_cast<std::size_t>(r.bytes + r.alignment)); !s) {
      return tl::unexpected<error>(s.error());
    }
    place = carve(a, r, how);
    if (!place) {
      return make_error(errc::address_space_exhausted, "caching_allocator::allocate",
                    "no addresses are left for it", r.bytes);
    }
  }
  loot l;
  l.by_host = a.pinned || capturing(a.stream);
  status s = gather(a, place->missing.bytes / page(), how, l);
  if (s) s = fence_off(a, l);
  if (s) s = map(*place, l);
  if (!s) {
    put_back(l);
    const std::lock_guard lock(a.lock);
    a.abandon(*place);
    return tl::unexpected<error>(s.error());
  }
  tell_grown(a, *place, l);
  let_go(a, *place, l);
  moved_ += l.moved_pages;
  created_ += l.created.size();
  segment *block = nullptr;
  {
    const std::lock_guard lock(a.lock);
    block = a.commit(*place);
    a.moved += l.moved_pages;
  }
  live_peak_ = std::max(live_peak_.load(), live() + static_cast<std::size_t>(r.bytes));
  backed_peak_ = std::max(backed_peak_.load(), backed());
  return block;
}

// ---- where blocks go ----

std::size_t caching_allocator::core::ceiling() const {
  return std::min(limit.load(), device_.total_memory().bytes());
}

// Where little more can be had, what there is has to do.
void caching_allocator::core::pack_all() {
  for (const auto &a : arenas_) {
    const std::lock_guard lock(a->lock);
    a->pack(true);
  }
}

// Where nothing had to be created for long, and some room is left, blocks go back to having places.
void caching_allocator::core::unpack_if_settled(arena &a) {
  {
    const std::lock_guard lock(a.lock);
    if (!a.packed() || a.counted().allocations - a.last_growth <= settled_after) return;
  }
  const std::size_t most = ceiling();
  if (backed() > most - most / 32) return;
  const std::lock_guard lock(a.lock);
  a.pack(false);
}

// ---- addresses ----

std::optional<extent_map::extent> caching_allocator::core::carve(arena &a, const block_request &r,
                                                                 effort how) {
  const auto search =
      how == effort::ordinary ? extent_map::search::quick : extent_map::search::thorough;
  const std::lock_guard lock(a.lock);
  return a.books.carve(r.bytes, r.alignment, search);
}

// Addresses cost nothing, and the more there are the less often what is still mapped somewhere has
// to be waited for: twice the memory, or what can be had.
status caching_allocator::core::reserve_addresses(arena &a, std::size_t bytes) {
  const std::size_t least = round_up(bytes, page()) + page();
  const std::size_t generous = round_up(
      std::min(2 * device_.total_memory().bytes(), device_.capabilities().largest_reservation / 2), page());
  std::size_t wanted = std::max(least, generous);
  for (;;) {
    auto block = device_.space().reserve(wanted, page(), options_.hint, options_.tag);
    if (block) {
      const virtual_range range = (*block)->range();
      {
        const std::lock_guard lock(a.lock);
        a.books.add(range);
        a.reservations.push_back(std::move(*block));
      }
      directory_.add(range, &a);
      tell_reserved(a, range);
      return {};
    }
    if (wanted == least || !block.error().is(errc::address_space_exhausted)) {
      return tl::unexpected<error>(block.error());
    }
    wanted = std::max(least, round_up(wanted / 2, page()));
  }
}

// ---- pages ----

// `pages` pages for `a`: what is tolerated is created, then comes what lies idle, then creating up
// to the limit; with effort::all every free page there is comes first (by_host: that is idle).
status caching_allocator::core::gather(arena &a, std::size_t pages, effort how, loot &into) {
  const std::size_t holding = backed();
  const std::size_t peak = std::max(live_peak_.load(), live() + kept_by_pools() + pages * page());
  const bool settles = arenas_.size() == 1 && (repeats_itself(a) || a.packed());
  const std::size_t soft = std::min(soft_limit.load(), peak + tolerated(peak, settles, page()));
  const std::size_t most = limit;
  const auto room = [&](std::size_t under) {
    return under > holding ? (under - holding) / page() : std::size_t{0};
  };
  std::size_t missing = pages;
  const std::size_t freely =
      how == effort::ordinary ? std::min(pages, room(std::min(soft, most))) : 0;
  const auto take = [&](arena &victim) {
    if (missing > freely) missing -= take_from(victim, missing - freely, into);
  };
  // A graph may hold the addresses of its own free pages.
  if (!into.by_host) take(a);
  if (missing > freely) {
    for (const bool idle_ones : {true, false}) {
      for (const auto &other : arenas_) {
        if (missing == freely || other.get() == &a || other->pinned) continue;
        if (how == effort::ordinary && !(idle_ones && is_idle(*other))) continue;
        if (how == effort::all && into.by_host && !is_idle(*other)) continue;
        if (how != effort::ordinary && capturing(other->stream)) continue;  // cannot be fenced off
        if (forget_lent(*other)) take(*other);
      }
    }
  }
  if (missing == 0) return {};
  if (missing > room(most)) {
    pack_all();
    return make_error(errc::out_of_memory, "caching_allocator::allocate",
                  "over the limit of the allocator", missing * page(), most);
  }
  return create(a, missing, into);
}

// Before pages of an arena leave it, they are mapped at one address only. False: they are not.
bool caching_allocator::core::forget_lent(arena &a) {
  {
    const std::lock_guard lock(a.lock);
    if (a.books.lent_bytes() == 0) return true;
  }
  auto after = fence::after(device_, a.stream);
  if (!after) return false;
  arena::leaving_pages going{{}, std::move(*after)};
  {
    const std::lock_guard lock(a.lock);
    a.books.forget_lent(going.segments);
  }
  for (const segment *s : going.segments) {
    device_.space().let_go(device_.space().block_at(device_address(s->begin)), s->range(),
                           going.idle);
  }
  const std::lock_guard lock(a.lock);
  a.leaving.push_back(std::move(going));
  return true;
}

std::size_t caching_allocator::core::take_from(arena &victim, std::size_t pages, loot &into) {
  taken t{&victim, {}, {}};
  std::size_t got = 0;
  {
    const std::lock_guard lock(victim.lock);
    got = victim.books.take(pages, t.segments);
    // What is kept for the same size is merged for it, if that is enough to matter.
    if (got < pages && victim.cached_bytes() >= page()) {
      victim.flush();
      got += victim.books.take(pages - got, t.segments);
    }
  }
  if (got != 0) into.moved.push_back(std::move(t));
  into.moved_pages += got;
  return got;
}

// Whether nothing is queued on its stream, so that its pages can be had without anybody waiting.
bool caching_allocator::core::is_idle(arena &a) {
  const context_guard guard(device_.driver(), device_.context());
  if (!guard.entered() || capturing(a.stream)) return false;  // asking would spoil the capture
  const auto idle = device_.driver().stream_idle(a.stream.get());
  return idle && *idle;
}

status caching_allocator::core::create(arena &a, std::size_t pages, loot &into) {
  const std::size_t most = ceiling();
  if (backed() + pages * page() > most / 16 * 9) pack_all();
  {
    const std::lock_guard lock(a.lock);
    a.last_growth = a.counted().allocations;
  }
  const auto consumer = into.by_host ? std::nullopt : std::optional<stream_ref>(a.stream);
  if (status s = pages_->acquire(pages, into.created, consumer); !s) {
    pack_all();  // others have the rest of the device
    return s;
  }
  for (const page_ptr &p : into.created) {
    const auto &home = p.pool();
    if (home == pages_ || std::find(guests_.begin(), guests_.end(), home) != guests_.end()) {
      continue;
    }
    guests_.push_back(home);
  }
  return {};
}

// Work on `a`'s stream from here on comes after what is queued on the streams the pages are from;
// by_host, the host waits instead: in ordinary growth for streams that were seen idle.
status caching_allocator::core::fence_off(arena &a, loot &l) {
  for (taken &t : l.moved) {
    if (t.from == &a && !t.for_good) continue;  // work is queued in order, and nothing is unmapped
    auto after = fence::after(device_, t.from->stream);
    if (!after) return tl::unexpected<error>(after.error());
    t.idle = std::move(*after);
    if (t.from == &a) continue;
    if (!l.by_host) {
      if (status s = t.idle.make_wait(device_, a.stream); !s) return s;
      continue;
    }
    if (const auto past = is_past(t.idle, true); !past) return tl::unexpected(past.error());
  }
  return {};
}

// Pages that move are mapped at their new place before the old one goes: nobody waits for that.
status caching_allocator::core::map(const extent_map::extent &place, loot &l) {
  remap_plan plan(access_);
  device_address at = place.missing.begin;
  for (const taken &t : l.moved) {
    for (const segment *s : t.segments) {
      auto pages = device_.space().mappings(s->range());
      if (pages.size() * page() != s->bytes) {
        return make_error(errc::corrupt, "caching_allocator::allocate",
                      "free pages are not mapped where they should be", s->begin, s->bytes);
      }
      for (mapping_record &m : pages) {
        if (m.state == mapping_state::suspended) {
          return make_error(errc::busy, "caching_allocator::allocate",
                        "free pages that it takes are suspended", m.range.begin.value());
        }
        plan.map(at, std::move(m.backing));
        at = at + page();
      }
    }
  }
  for (const page_ptr &p : l.created) {
    plan.map(at, p);
    at = at + page();
  }
  return device_.space().apply(std::move(plan));
}

void caching_allocator::core::put_back(loot &l) {
  for (taken &t : l.moved) {
    const std::lock_guard lock(t.from->lock);
    for (segment *s : t.segments) t.from->put_back(s);
  }
}

// Pages of the same arena stay mapped where they were too, and can be had back there by writing it
// down. Other old mappings go when their streams have got there.
void caching_allocator::core::let_go(arena &a, const extent_map::extent &place, loot &l) {
  std::uint64_t to = place.missing.begin.value();
  for (taken &t : l.moved) {
    if (t.from == &a) {
      const std::lock_guard lock(a.lock);
      for (segment *s : t.segments) {
        const std::uint64_t bytes = s->bytes;
        a.books.lend(s, to);  // it may be part of another one then
        to += bytes;
      }
      continue;
    }
    for (const segment *s : t.segments) to += s->bytes;
    for (const segment *s : t.segments) {
      device_.space().let_go(device_.space().block_at(device_address(s->begin)), s->range(),
                             t.idle);
    }
    const std::lock_guard lock(t.from->lock);
    t.from->leaving.push_back({std::move(t.segments), std::move(t.idle)});
  }
}

// Whether the stream is capturing a graph, or cannot be asked because another one is.
bool caching_allocator::core::capturing(stream_ref s) const {
  const context_guard guard(device_.driver(), device_.context());
  if (!guard.entered()) return false;
  const auto answer = device_.driver().stream_capturing(s.get());
  return !answer || *answer;
}

// ---- sums ----

std::size_t caching_allocator::core::backed() const {
  std::size_t sum = 0;
  for (const auto &a : arenas_) {
    const std::lock_guard lock(a->lock);
    sum += a->books.backed_bytes();
  }
  return sum;
}

std::size_t caching_allocator::core::live() const {
  std::size_t sum = 0;
  for (const auto &a : arenas_) {
    const std::lock_guard lock(a->lock);
    sum += static_cast<std::size_t>(a->counted().live);
  }
  return sum;
}

}  // namespace stillmap
