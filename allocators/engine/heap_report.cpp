#include "stillmap/allocators/engine/heap_report.h"

#include <algorithm>
#include <new>

#include "stillmap/allocators/engine/arena_locks.h"
#include "stillmap/allocators/engine/block_report.h"
#include "stillmap/allocators/engine/thread_stream.h"

namespace stillmap {
namespace {

arena_stats figures_of(const arena &a) STILLMAP_REQUIRES(a.lock()) {
  const block_counters &n = a.blocks().counters();
  arena_stats out;
  out.id = a.id;
  out.pool = a.service_locked().pool;
  out.stream = thread_stream::reported(a.service_locked().stream);
  out.live = static_cast<std::size_t>(n.live);
  out.live_peak = static_cast<std::size_t>(n.live_peak);
  out.requested = static_cast<std::size_t>(n.live - n.slack);
  out.blocks = static_cast<std::size_t>(n.blocks());
  out.pending_free = static_cast<std::size_t>(n.pending_free);
  out.committed = a.extents().committed_bytes();
  out.reserved = a.extents().reserved_bytes();
  out.aliased = a.extents().aliased_bytes();
  out.cached = static_cast<std::size_t>(a.blocks().cached_bytes());
  out.free_whole_pages = a.extents().free_pages() * a.extents().page_bytes();
  out.page_edges = a.extents().free_bytes() - out.free_whole_pages;
  out.allocations = n.allocations;
  out.frees = n.frees;
  return out;
}

void add(arena_stats &sum, const arena_stats &a) {
  sum.live += a.live;
  sum.requested += a.requested;
  sum.blocks += a.blocks;
  sum.pending_free += a.pending_free;
  sum.committed += a.committed;
  sum.reserved += a.reserved;
  sum.aliased += a.aliased;
  sum.cached += a.cached;
  sum.free_whole_pages += a.free_whole_pages;
  sum.page_edges += a.page_edges;
  sum.allocations += a.allocations;
  sum.frees += a.frees;
}

// False: the host has no memory for them.
bool reserve(std::vector<arena_stats> &list, std::size_t arenas) noexcept {
  try {
    list.reserve(arenas);
    return true;
  } catch (const std::bad_alloc &) {
    return false;
  }
}

// Extent maps list reservations in the order in which they were added; chunks are many.
void sort_by_address(heap_map::arena &a) {
  std::sort(a.reserved.begin(), a.reserved.end(),
            [](const virtual_range &x, const virtual_range &y) { return x.begin < y.begin; });
  std::sort(a.extents.begin(), a.extents.end(), [](const heap_extent &x, const heap_extent &y) {
    return x.range.begin < y.range.begin;
  });
}

}  // namespace

caching_allocator_stats stats_of(const heap &h, std::size_t created_ahead) {
  caching_allocator_stats out;
  std::size_t largest_peak = 0;
  {
    const lock_guard lock(h.arenas_mutex);
    const bool listed = reserve(out.arenas, h.reported_arenas.size());
    const all_arena_locks held(h.reported_arenas);  // a page that moves is not counted twice
    for (const auto &a : h.reported_arenas) {
      held.assume_held(*a);
      const arena_stats figures = figures_of(*a);
      if (listed) out.arenas.push_back(figures);
      out.host_bytes += a->host_bytes();
      out.pages_recalled += a->blocks().counters().recalled;
      add(out.total, figures);
      largest_peak = std::max(largest_peak, figures.live_peak);
    }
  }
  const allocator_counters &n = h.counters;
  out.total.live_peak = std::max({n.reported_live_peak.load(), out.total.live, largest_peak});
  out.committed_peak = std::max(n.reported_committed_peak.load(), out.total.committed);
  out.created_ahead = created_ahead;
  out.page_bytes = h.page_bytes;
  out.growths = n.growths;
  out.pages_created = n.created;
  out.pages_moved = n.moved;
  out.pages_released = n.released;
  out.host_waits = n.host_waits;
  out.out_of_memory = n.failed;
  out.host_bytes += h.shared->host_bytes() + h.observers.history.host_bytes();
  return out;
}

void reset_peaks(heap &h) {
  const growth_lock growing(h.growth_mutex);
  for (const auto &a : h.arenas) {
    const lock_guard lock(a->lock());
    block_counters &n = a->blocks().counters();
    n.live_peak = n.live;
  }
  h.counters.reported_live_peak = h.counters.reported_committed_peak = 0;
}

heap_map map_of(heap &h) {
  const growth_lock growing(h.growth_mutex);
  heap_map out;
  out.page_bytes = h.page_bytes;
  for (const auto &a : h.arenas) {
    heap_map::arena &drawn = out.arenas.emplace_back();
    {
      const lock_guard lock(a->lock());
      drawn.id = a->id;
      drawn.pool = a->service_locked().pool;
      drawn.stream = thread_stream::reported(a->service_locked().stream);
      a->extents().each_reservation([&](const virtual_range &r) { drawn.reserved.push_back(r); });
      describe(a->blocks(), drawn.extents);
    }
    sort_by_address(drawn);
  }
  if (h.observers.enabled()) h.observers.history.push({});
  return out;
}

release_report report_release(const heap &h, memory_source &source, std::size_t released,
                              const std::vector<arena *> &giving) {
  release_report out{.released = released};
  for (const auto &a : h.arenas) {
    const std::size_t whole = source.releasable_bytes(*a);
    const lock_guard lock(a->lock());
    const arena_stats n = figures_of(*a);
    const std::size_t free = n.free_whole_pages + n.page_edges + n.cached;
    if (a->service_locked().pinned) {
      out.private_pools += free + n.pending_free;
    } else if (std::find(giving.begin(), giving.end(), a.get()) == giving.end()) {
      out.capturing += free + n.pending_free;
    } else {
      out.kept += whole;
      out.pending_free += n.pending_free;
      out.page_edges += free > whole ? free - whole : 0;
    }
  }
  return out;
}

}  // namespace stillmap
