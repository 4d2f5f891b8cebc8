// Reclaiming: blocks that other streams used, pages whose old mapping is undone, and pages that
// return to the device.
#include <algorithm>

#include "stillmap/allocators/internal/allocator_core.h"
#include "stillmap/vmm/internal/try.h"

namespace stillmap {

// ---- reclaiming ----

void allocator_core::reclaim(bool wait) {
  reclaim_pools(wait);
  for (const auto &a : arenas_) {
    reclaim_pending(*a, wait);
    reclaim_unmapping(*a, wait);
  }
}

// Frees the pending blocks whose other streams have passed; with `wait`, waits for all of them.
void allocator_core::reclaim_pending(arena &a, bool wait) {
  std::vector<pending_block> deferred;
  {
    const std::lock_guard lock(a.lock);
    deferred.swap(a.deferred);
  }
  for (pending_block &b : deferred) a.pending.add(std::move(b));
  std::vector<std::uint64_t> freed;
  a.pending.collect([&](stream_use &u) { return has_passed(u, wait); }, freed);
  for (const std::uint64_t address : freed) {
    const std::lock_guard lock(a.lock);
    notify_free_completed(a, address);
    a.complete_free(address);
  }
}

void allocator_core::reclaim_unmapping(arena &a, bool wait) {
  std::vector<arena::unmapping_extents> due;
  {
    const std::lock_guard lock(a.lock);
    due.swap(a.unmapping);
  }
  for (arena::unmapping_extents &l : due) {
    const auto past = has_passed(l.idle, wait);
    std::vector<extent *> left;
    for (extent *s : l.extents) {
      if (!past || !*past || !device_.space().collect_range(s->range())) {
        left.push_back(s);
        continue;
      }
      const std::lock_guard lock(a.lock);
      a.extents.unmapped(s);
    }
    if (left.empty()) continue;
    const std::lock_guard lock(a.lock);
    a.unmapping.push_back({std::move(left), std::move(l.idle)});
  }
}

void allocator_core::flush_all() {
  each_arena([](arena &a) { a.flush(); });
}

// ---- releasing pages to the device ----

result<release_report> allocator_core::trim(std::size_t keep) {
  if (watch_.in_child()) return forked_error("caching_allocator::trim");
  const std::lock_guard growing(growth_mutex_);
  const relaxed_capture_mode relaxed(device_.driver());
  STILLMAP_RETURN_IF_ERROR(relaxed.entered());
  end_destroyed_streams();
  std::vector<arena *> giving;
  if (in_chunks()) {
    STILLMAP_ASSIGN_OR_RETURN(const std::size_t given, trim_chunks(keep));
    for (const auto &a : arenas_) giving.push_back(a.get());
    return report_release(given, giving);
  }
  reclaim_pools(false);
  // Pages of private pools stay. No event can be recorded on a capturing stream, so its pages stay
  // too.
  for (const auto &a : arenas_) {
    if (!a->pinned && !capturing(*a)) giving.push_back(a.get());
  }
  for (arena *const a : giving) drop_aliases(*a);
  reclaim(false);
  flush_all();
  std::size_t free_pages = 0;
  for (const arena *const a : giving) {
    const std::lock_guard lock(a->lock);
    free_pages += a->extents.free_pages();
  }
  std::size_t surplus = free_pages - std::min(free_pages, keep / page());
  std::size_t given = 0;
  status outcome;
  for (arena *const a : giving) {
    if (surplus == 0) break;
    std::size_t bytes = 0;
    if (status s = retire(*a, surplus, bytes); !s) outcome = s;
    given += bytes;
    surplus -= bytes / page();
  }
  reclaim(false);
  if (!outcome) return tl::unexpected<error>(outcome.error());
  if (options_.create_ahead_bytes != 0) {
    pages_->keep_ready(0);
    STILLMAP_ASSIGN_OR_RETURN(const physical_size ahead, pages_->trim(0));
    given += ahead.bytes();
  }
  return report_release(given, giving);
}

// Why free memory stayed. `giving`: the arenas that could release pages.
release_report allocator_core::report_release(std::size_t released,
                                              const std::vector<arena *> &giving) {
  release_report out{.released = released};
  each_arena([&](arena &a) {
    const std::size_t pending = static_cast<std::size_t>(a.counted().pending_free);
    const std::size_t cached = static_cast<std::size_t>(a.cached_bytes());
    const std::size_t all = a.extents.free_bytes() + cached;
    if (a.pinned) {
      out.private_pools += all + pending;
    } else if (std::find(giving.begin(), giving.end(), &a) == giving.end()) {
      out.capturing += all + pending;
    } else {
      const std::size_t whole =
          in_chunks() ? a.unused_chunk_bytes() : a.extents.free_pages() * page();
      out.kept += whole;
      out.pending_free += pending;
      out.page_edges += all > whole ? all - whole : 0;
    }
  });
  return out;
}

// Releases up to `pages` whole free pages of `a`. Pages that cannot be released stay.
status allocator_core::retire(arena &a, std::size_t pages, std::size_t &bytes) {
  {
    const std::lock_guard lock(a.lock);
    // Aliases are left where no event could be recorded on the stream.
    if (a.extents.aliased_bytes() != 0) {
      return make_error(errc::busy, "caching_allocator::empty_cache",
                        "a stream that captures a graph delays the release");
    }
  }
  page_supply supply;
  if (take_free_pages(a, pages, supply) == 0) return {};
  for (taken_pages &t : supply.moved) t.leaves_allocator = true;
  if (status s = order_after_last_use(a, supply); !s) {
    put_back(supply);
    return s;
  }
  status outcome;
  for (taken_pages &t : supply.moved) {
    std::vector<extent *> going;
    for (extent *s : t.extents) {
      const status gone = device_.space().retire(device_.space().block_at(device_address(s->begin)),
                                                 s->range(), t.idle);
      if (gone) {
        going.push_back(s);
        bytes += static_cast<std::size_t>(s->bytes);
        notify_unmapped(a, s->range());
        released_ += s->bytes / page();
        continue;
      }
      outcome = gone;
      const std::lock_guard lock(a.lock);
      a.put_back(s);
    }
    const std::lock_guard lock(a.lock);
    if (!going.empty()) a.unmapping.push_back({std::move(going), std::move(t.idle)});
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
  const std::lock_guard growing(growth_mutex_);
  bool any = false;
  for (const auto &a : arenas_)
    any = any || a->extents.committed_bytes() != 0 || a->extents.aliased_bytes() != 0 ||
          !a->unmapping.empty();
  if (!any) return;
  const relaxed_capture_mode relaxed(device_.driver());
  report_if_failed(relaxed.entered());
  report_if_failed(wait_for_device());
  if (in_chunks()) return free_all_chunks();
  for (const auto &a : arenas_) {
    reclaim_unmapping(*a, true);
    for (const auto &block : a->reservations) {
      remap_plan plan({});
      virtual_range run;
      for (const mapping_record &m : device_.space().mappings(block->range())) {
        if (m.state == mapping_state::retiring) continue;
        if (run.end() != m.range.begin || run.empty()) {
          plan.unmap(run);
          run = m.range;
        } else {
          run.bytes += m.range.bytes;
        }
      }
      plan.unmap(run);
      if (plan.empty()) continue;
      report_if_failed(device_.space().apply(std::move(plan)));
    }
  }
}

}  // namespace stillmap
