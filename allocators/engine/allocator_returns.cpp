// Reclaiming: blocks that other streams used, pages whose old mapping is undone, and pages that
// return to the device.
#include <algorithm>

#include "stillmap/allocators/engine/allocator_core.h"
#include "stillmap/allocators/engine/room.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {

// ---- reclaiming ----

void allocator_core::reclaim(waiting_for wait, const arena *but_pending_of) noexcept {
  reclaim_pools(wait);
  for (const auto &a : arenas_) {
    if (a.get() != but_pending_of) reclaim_pending(*a, wait);
    reclaim_unmapping(*a, wait == waiting_for::everything);
  }
}

// Frees the pending blocks whose other streams have passed, after it has waited for those of `wait`.
// What the host has no memory for stays pending.
void allocator_core::reclaim_pending(arena &a, waiting_for wait) noexcept {
  pending_frees &waiting = returns_of(a).pending;
  pending_list due;
  {
    const lock_guard lock(a.lock);
    due.append(a.deferred);
  }
  while (!due.empty() && waiting.add(due.front())) due.pop_front();
  if (!due.empty()) {
    const lock_guard lock(a.lock);
    due.append(a.deferred);
    a.deferred.append(due);
  }
  const auto passed = [&](stream_use &u) {
    assume_growing();
    return has_passed(u, wait);
  };
  waiting.collect(passed, [&](const pending_block &b) {
    const lock_guard lock(a.lock);
    notify_free_completed(a, b.address);
    a.complete_free(b.address);
  });
}

// Without it, where a block lies would depend on when memory was last short, and a loop whose blocks
// are used on several streams would never come to rest.
result<void *> allocator_core::allocate_after_reclaim(arena &a, const block_request &r) {
  const context_scope inside(device_.driver(), device_.context());
  STILLMAP_RETURN_IF_ERROR(inside.entered());
  const relaxed_capture_mode relaxed(device_.driver());
  STILLMAP_RETURN_IF_ERROR(relaxed.entered());
  reclaim_pending(a, waiting_for::nothing);
  const lock_guard lock(a.lock);
  return a.allocate(r);
}

void allocator_core::reclaim_unmapping(arena &a, bool wait) noexcept {
  std::vector<arena_returns::unmapping_extents> &unmapping = returns_of(a).unmapping;
  for (arena_returns::unmapping_extents &l : unmapping) {
    const auto past = has_passed(l.idle, wait);
    if (!past || !*past) continue;
    std::erase_if(l.extents, [&](extent *s) {
      const status gone = with_host_memory(
          "caching_allocator::trim", [&] { return device_.space().collect_range(s->range()); });
      if (!gone) return false;
      const lock_guard lock(a.lock);
      a.extents.unmapped(s);
      return true;
    });
  }
  std::erase_if(unmapping, [](const auto &l) { return l.extents.empty(); });
}

void allocator_core::flush_all() {
  for (const auto &a : arenas_) {
    const lock_guard lock(a->lock);
    a->flush();
  }
}

// ---- releasing pages to the device ----

result<release_report> allocator_core::trim(const char *op, std::size_t keep) {
  if (watch_.in_child()) return forked_error(op);
  const lock_guard growing(growth_mutex_);
  const relaxed_capture_mode relaxed(device_.driver());
  STILLMAP_RETURN_IF_ERROR(relaxed.entered());
  end_destroyed_streams();
  std::vector<arena *> giving;
  if (in_chunks()) {
    STILLMAP_ASSIGN_OR_RETURN(const std::size_t given, trim_chunks(op, keep));
    for (const auto &a : arenas_) giving.push_back(a.get());
    return report_release(given, giving);
  }
  reclaim_pools(waiting_for::destroyed_streams);
  // Pages of private pools stay. No event can be recorded on a capturing stream, so its pages stay
  // too.
  for (const auto &a : arenas_) {
    if (!a->now().pinned && !capturing(*a)) giving.push_back(a.get());
  }
  for (arena *const a : giving) drop_aliases(*a);
  // Where no event could be recorded on the stream.
  std::vector<arena *> aliased;
  for (const auto &a : arenas_) {
    const lock_guard lock(a->lock);
    if (a->extents.aliased_bytes() != 0) aliased.push_back(a.get());
  }
  reclaim(waiting_for::destroyed_streams);
  flush_all();
  std::size_t free_pages = 0;
  for (const arena *const a : giving) {
    const lock_guard lock(a->lock);
    free_pages += a->extents.free_pages();
  }
  std::size_t surplus = free_pages - std::min(free_pages, keep / page());
  std::size_t given = 0;
  status outcome;
  for (arena *const a : giving) {
    if (surplus == 0) break;
    std::size_t bytes = 0;
    if (status s = retire(op, *a, surplus, aliased, bytes); !s) outcome = s;
    given += bytes;
    surplus -= bytes / page();
  }
  reclaim(waiting_for::destroyed_streams);
  if (!outcome) return tl::unexpected<error>(outcome.error());
  if (options_.create_ahead_bytes != 0) {
    pages_->keep_ready(0);
    STILLMAP_ASSIGN_OR_RETURN(const physical_size ahead, pages_->trim(0));
    given += ahead.bytes();
  }
  return report_release(given, giving);
}

// Releases up to `pages` whole free pages of `a`. Pages that cannot be released stay. `aliased`: the
// arenas that still have aliases.
status allocator_core::retire(const char *op, arena &a, std::size_t pages,
                              const std::vector<arena *> &aliased, std::size_t &bytes) {
  const auto has_aliases = [&](const arena *other) {
    const arena_pair_lock locks(*other, a);
    return other == &a || other->extents.has_aliases_of(a.extents);
  };
  if (std::any_of(aliased.begin(), aliased.end(), has_aliases)) {
    return make_error(errc::busy, op, "a stream that captures a graph delays the release");
  }
  page_supply supply;
  const status ready = with_host_memory(op, [&]() STILLMAP_REQUIRES(growth_mutex_) -> status {
    if (take_free_pages(a, pages, supply) == 0) return {};
    supply.moved.front().leaves_allocator = true;
    make_room(returns_of(a).unmapping);
    return order_after_last_use(a, supply);
  });
  if (!ready) {
    put_back(supply);
    return ready;
  }
  status outcome;
  for (taken_pages &t : supply.moved) {
    std::erase_if(t.extents, [&](extent *s) {
      const status gone = with_host_memory(op, [&] {
        return device_.space().retire(device_.space().block_at(device_address(s->begin)),
                                      s->range(), t.idle);
      });
      if (gone) {
        {
          const lock_guard lock(a.lock);
          a.extents.leave(*s);
        }
        bytes += static_cast<std::size_t>(s->bytes);
        notify_unmapped(a, s->range());
        released_ += s->bytes / page();
        return false;
      }
      outcome = gone;
      const lock_guard lock(a.lock);
      a.extents.put_back(s);
      return true;
    });
    if (t.extents.empty()) continue;
    returns_of(a).unmapping.push_back({std::move(t.extents), std::move(t.idle)});
  }
  return outcome;
}

// ---- destruction ----

status allocator_core::wait_for_device() const {
  const context_guard guard(device_.driver(), device_.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  return device_.driver().synchronize_context();
}

void allocator_core::unmap_everything() noexcept {
  const lock_guard growing(growth_mutex_);
  bool any = false;
  for (const auto &a : arenas_) {
    const lock_guard lock(a->lock);
    any = any || a->extents.committed_bytes() != 0 || a->extents.aliased_bytes() != 0 ||
          !returns_of(*a).unmapping.empty();
  }
  if (!any) return;
  const relaxed_capture_mode relaxed(device_.driver());
  report_if_failed(relaxed.entered());
  report_if_failed(wait_for_device());
  if (in_chunks()) return free_all_chunks();
  for (const auto &a : arenas_) {
    reclaim_unmapping(*a, true);
    a->lock.assume_held();  // no other thread uses the allocator any more
    for (const auto &block : a->reservations) {
      report_if_failed(device_.space().unmap(block->range()));
    }
  }
}

}  // namespace stillmap
