// Private pools: memory that captured graphs replay on. docs/allocator_graphs.md
#include "stillmap/allocators/engine/allocator_core.h"
#include "stillmap/allocators/engine/room.h"
#include "stillmap/allocators/engine/thread_stream.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {
namespace {

void add_use(std::vector<stream_use> &uses, stream_ref s) {
  const auto same = [&](const stream_use &u) { return u.is_on(s); };
  if (std::none_of(uses.begin(), uses.end(), same)) uses.push_back({.stream = s});
}

}  // namespace

result<private_pools::pool *> allocator_core::find_pool(const char *op, private_pool p) {
  if (private_pools::pool *const pool = pools_.find(p.id)) return pool;
  return make_error(errc::invalid_argument, op, "the pool does not exist or was released", p.id);
}

result<private_pool> allocator_core::create_pool() {
  if (watch_.in_child()) return forked_error("caching_allocator::create_pool");
  const lock_guard growing(growth_mutex_);
  return private_pool{pools_.make()};
}

status allocator_core::retain_pool(private_pool p) {
  constexpr const char *op = "caching_allocator::retain_pool";
  if (watch_.in_child()) return forked_error(op);
  const lock_guard growing(growth_mutex_);
  STILLMAP_ASSIGN_OR_RETURN(private_pools::pool *const pool, find_pool(op, p));
  ++pool->holders;
  return {};
}

status allocator_core::release_pool(private_pool p, const std::vector<stream_ref> &replayed_on) {
  constexpr const char *op = "caching_allocator::release_pool";
  if (watch_.in_child()) return forked_error(op);
  const lock_guard growing(growth_mutex_);
  STILLMAP_ASSIGN_OR_RETURN(private_pools::pool *const pool, find_pool(op, p));
  if (pool->holders == 1 && !pool->capturing.empty()) {
    return make_error(errc::busy, op, "a stream still allocates to the pool", p.id);
  }
  std::vector<stream_use> uses = pool->uses;
  for (const stream_ref s : replayed_on) add_use(uses, thread_stream::key_of(s));
  if (pool->holders == 1) {
    for (const arena *const a : pool->arenas) {
      const arena::facts now = a->now();
      if (now.ended) {
        uses.push_back({.stream = now.stream});
        uses.back().forget(++recorded_uses_, returns_of(*a).last_work);
      } else {
        add_use(uses, now.stream);
      }
    }
  }
  pool->uses.swap(uses);
  if (--pool->holders != 0) return {};
  for (stream_use &u : pool->uses) static_cast<void>(record(u));  // reclaim_pools tries again
  return {};
}

status allocator_core::begin_allocate_to_pool(private_pool p, stream_ref named) {
  const stream_ref s = thread_stream::key_of(named);
  constexpr const char *op = "caching_allocator::begin_allocate_to_pool";
  if (watch_.in_child()) return forked_error(op);
  const lock_guard growing(growth_mutex_);
  STILLMAP_ASSIGN_OR_RETURN(private_pools::pool *const pool, find_pool(op, p));
  if (const private_pools::pool *const other = pools_.serving(s)) {
    return make_error(errc::busy, op, "the stream allocates to a pool already", p.id, other->id);
  }
  make_room(pool->capturing);
  make_room(pool->arenas);
  arena &outside = arena_for(s);
  arena &inside = pool_arena(*pool, s);
  pool->capturing.push_back({s, &outside});
  streams_.serve(s, &inside);
  return {};
}

status allocator_core::end_allocate_to_pool(private_pool p, stream_ref named) {
  const stream_ref s = thread_stream::key_of(named);
  constexpr const char *op = "caching_allocator::end_allocate_to_pool";
  if (watch_.in_child()) return forked_error(op);
  const lock_guard growing(growth_mutex_);
  STILLMAP_ASSIGN_OR_RETURN(private_pools::pool *const pool, find_pool(op, p));
  const auto now = std::find_if(pool->capturing.begin(), pool->capturing.end(),
                                [&](const private_pools::served &x) { return x.stream == s; });
  if (now == pool->capturing.end()) {
    return make_error(errc::invalid_argument, op, "the stream does not allocate to the pool", p.id);
  }
  // If the stream was destroyed meanwhile, its arena may serve another stream.
  arena *const outside = now->outside;
  streams_.serve(s, outside->now().serves(s) ? outside : nullptr);
  pool->capturing.erase(now);
  return {};
}

// The pool's arena for a stream: the one it has; else one that a released pool no longer uses, so
// that repeated captures do not reserve ever more addresses; else a new one. Requires: room in
// p.arenas.
arena &allocator_core::pool_arena(private_pools::pool &p, stream_ref s) {
  for (arena *const a : p.arenas) {
    if (a->now().serves(s)) return *a;
  }
  arena *found = nullptr;
  if (const relaxed_capture_mode relaxed(device_.driver()); relaxed.entered()) {
    reclaim_pools(waiting_for::nothing);
    for (const auto &a : arenas_) {
      if (!a->now().serves(s) || !is_reusable(*a)) continue;
      found = a.get();
      break;
    }
  }
  if (found == nullptr) found = &make_arena(s);
  {
    const lock_guard lock(found->lock);
    found->pool = p.id;
    found->pinned = true;
  }
  p.arenas.push_back(found);
  return *found;
}

// Whether a released pool's arena can serve another pool: no block is allocated or pending, and no
// queued work uses the memory that comes with it.
bool allocator_core::is_reusable(arena &a) {
  bool committed = false;
  {
    const lock_guard lock(a.lock);
    const arena::counters &n = a.counted();
    if (a.pool == 0 || a.pinned || n.allocations != n.frees || n.pending_free != 0) return false;
    if (a.extents.aliased_bytes() != 0) return false;
    committed = a.extents.committed_bytes() != 0;
  }
  return !committed || is_idle(a);
}

// Ends released pools whose graphs have completed: their pages become ordinary pages.
void allocator_core::reclaim_pools(waiting_for wait) noexcept {
  pools_.each_released([&](private_pools::pool &p) {
    assume_growing();
    std::erase_if(p.uses, [&](stream_use &u)
                              STILLMAP_REQUIRES(growth_mutex_) { return has_passed(u, wait); });
    if (!p.uses.empty()) return false;
    for (arena *const a : p.arenas) {
      const lock_guard lock(a->lock);
      a->pinned = false;
    }
    return true;
  });
}

// The free memory that is reserved to private pools.
std::size_t allocator_core::pinned_free_bytes() const {
  std::size_t sum = 0;
  for (const auto &a : arenas_) {
    const lock_guard lock(a->lock);
    if (a->pinned) sum += a->extents.free_bytes() + static_cast<std::size_t>(a->cached_bytes());
  }
  return sum;
}

}  // namespace stillmap
