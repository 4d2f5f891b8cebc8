#include "stillmap/allocators/engine/graph_pools.h"

#include "stillmap/allocators/engine/thread_stream.h"
#include "stillmap/allocators/internal/room.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

namespace stillmap {
namespace {

void add_use(std::vector<stream_use> &uses, stream_ref s) {
  const auto same = [&](const stream_use &u) { return u.is_on(s); };
  if (std::none_of(uses.begin(), uses.end(), same)) uses.push_back({.stream = s});
}

}  // namespace

result<private_pool> graph_pools::create() {
  if (heap_.in_child()) return forked_error();
  const growth_lock growing(heap_.growth_mutex);
  all_.emplace_back().id = ++last_;
  return private_pool{last_};
}

status graph_pools::retain(private_pool p) {
  if (heap_.in_child()) return forked_error();
  const growth_lock growing(heap_.growth_mutex);
  STILLMAP_ASSIGN_OR_RETURN(pool *const found, find(p));
  ++found->holders;
  return {};
}

status graph_pools::release(private_pool p, const std::vector<stream_ref> &replayed_on) {
  if (heap_.in_child()) return forked_error();
  const growth_lock growing(heap_.growth_mutex);
  STILLMAP_ASSIGN_OR_RETURN(pool *const found, find(p));
  const bool last = found->holders == 1;
  if (last && !found->capturing.empty()) {
    return make_error(errc::busy, "a stream still allocates to the pool", p.id);
  }
  std::vector<stream_use> uses = found->uses;
  for (const stream_ref s : replayed_on) add_use(uses, thread_stream::key_of(s));
  if (last) {
    for (const arena *const a : found->arenas) {
      const arena::service now = a->service_now();
      if (now.ended) {
        uses.push_back({.stream = now.stream});
        uses.back().forget(streams_.next_use_number(), heap_.returns_of(*a).last_work);
      } else {
        add_use(uses, now.stream);
      }
    }
  }
  found->uses.swap(uses);
  if (--found->holders != 0) return {};
  for (stream_use &u : found->uses) static_cast<void>(streams_.record(u));  // reclaim tries again
  return {};
}

status graph_pools::begin_allocate(private_pool p, stream_ref named) {
  const stream_ref s = thread_stream::key_of(named);
  if (heap_.in_child()) return forked_error();
  const growth_lock growing(heap_.growth_mutex);
  STILLMAP_ASSIGN_OR_RETURN(pool *const found, find(p));
  if (const std::uint64_t other = pool_of(s); other != 0) {
    return make_error(errc::busy, "the stream allocates to a pool already", p.id, other);
  }
  make_room(found->capturing);
  make_room(found->arenas);
  arena &outside = streams_.arena_for(s);
  arena &inside = arena_of(*found, s);
  found->capturing.push_back({s, &outside});
  heap_.streams.serve(s, &inside);
  return {};
}

status graph_pools::end_allocate(private_pool p, stream_ref named) {
  const stream_ref s = thread_stream::key_of(named);
  if (heap_.in_child()) return forked_error();
  const growth_lock growing(heap_.growth_mutex);
  STILLMAP_ASSIGN_OR_RETURN(pool *const found, find(p));
  const auto now = std::find_if(found->capturing.begin(), found->capturing.end(),
                                [&](const served &x) { return x.stream == s; });
  if (now == found->capturing.end()) {
    return make_error(errc::invalid_argument, "the stream does not allocate to the pool", p.id);
  }
  // If the stream was destroyed meanwhile, its arenas may serve others, and another arena a stream of that handle.
  arena *const outside = now->outside, *const inside = heap_.streams.of(s);
  const auto &own = found->arenas;
  if (inside != nullptr && std::find(own.begin(), own.end(), inside) != own.end()) {
    heap_.streams.serve(s, outside->service_now().serves(s) ? outside : nullptr);
  }
  found->capturing.erase(now);
  return {};
}

result<graph_pools::pool *> graph_pools::find(private_pool p) {
  for (pool &one : all_) {
    if (one.id == p.id && one.holders != 0) return &one;
  }
  return make_error(errc::invalid_argument, "the pool does not exist or was released", p.id);
}

std::uint64_t graph_pools::pool_of(stream_ref s) const {
  for (const pool &p : all_) {
    for (const served &now : p.capturing) {
      if (now.stream == s) return p.id;
    }
  }
  return 0;
}

bool graph_pools::has_uses_on(stream_ref s) const {
  return std::any_of(all_.begin(), all_.end(), [&](const pool &p) {
    return std::any_of(p.uses.begin(), p.uses.end(),
                       [&](const stream_use &u) { return u.is_on(s); });
  });
}

void graph_pools::forget(stream_ref s, std::uint64_t number, const fence &last_work) {
  for (pool &p : all_) {
    for (stream_use &u : p.uses) {
      if (u.is_on(s)) u.forget(number, last_work);
    }
  }
}

// The pool's arena for a stream: the one it has; else one that a released pool no longer uses, so
// that repeated captures do not reserve ever more addresses; else a new one. Requires: room in
// p.arenas.
arena &graph_pools::arena_of(pool &p, stream_ref s) {
  for (arena *const a : p.arenas) {
    if (a->service_now().serves(s)) return *a;
  }
  arena *found = nullptr;
  if (const relaxed_capture_mode relaxed(heap_.device.driver()); relaxed.entered()) {
    reclaim(waiting_for::nothing);
    for (const auto &a : heap_.arenas) {
      if (!a->service_now().serves(s) || !is_reusable(*a)) continue;
      found = a.get();
      break;
    }
  }
  if (found == nullptr) found = &heap_.make_arena(s);
  found->set_service({.stream = s, .pinned = true, .pool = p.id});
  p.arenas.push_back(found);
  return *found;
}

// Whether a released pool's arena can serve another pool: no block is allocated or pending, and no
// queued work uses the memory that comes with it.
bool graph_pools::is_reusable(arena &a) {
  bool committed = false;
  {
    const lock_guard lock(a.lock());
    const block_counters &n = a.blocks().counters();
    if (a.service_locked().pool == 0 || a.service_locked().pinned || n.blocks() != 0 ||
        n.pending_free != 0)
      return false;
    if (a.extents().aliased_bytes() != 0) return false;
    committed = a.extents().committed_bytes() != 0;
  }
  return !committed || streams_.is_idle(a);
}

void graph_pools::reclaim(waiting_for wait) noexcept {
  std::erase_if(all_, [&](pool &p) STILLMAP_REQUIRES(growth) {
    if (p.holders != 0) return false;
    std::erase_if(p.uses, [&](stream_use &u)
                              STILLMAP_REQUIRES(growth) { return streams_.has_passed(u, wait); });
    if (!p.uses.empty()) return false;
    for (arena *const a : p.arenas) {
      arena::service now = a->service_now();
      now.pinned = false;
      a->set_service(now);
    }
    return true;
  });
}

}  // namespace stillmap
