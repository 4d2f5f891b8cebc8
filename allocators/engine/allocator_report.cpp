// Statistics and maps of the allocator.
#include <algorithm>

#include "stillmap/allocators/engine/allocator_core.h"
#include "stillmap/allocators/engine/thread_stream.h"

namespace stillmap {
namespace {

arena_stats figures_of(const arena &a) STILLMAP_REQUIRES(a.lock) {
  const arena::counters &n = a.counted();
  arena_stats out;
  out.id = a.id;
  out.pool = a.pool;
  out.stream = thread_stream::reported(a.stream);
  out.live = static_cast<std::size_t>(n.live);
  out.live_peak = static_cast<std::size_t>(n.live_peak);
  out.requested = static_cast<std::size_t>(n.live - n.slack);
  out.blocks = static_cast<std::size_t>(n.allocations - n.frees);
  out.pending_free = static_cast<std::size_t>(n.pending_free);
  out.committed = a.extents.committed_bytes();
  out.reserved = a.extents.reserved_bytes();
  out.aliased = a.extents.aliased_bytes();
  out.cached = static_cast<std::size_t>(a.cached_bytes());
  out.free_whole_pages = a.extents.free_pages() * a.extents.page_bytes();
  out.page_edges = a.extents.free_bytes() - out.free_whole_pages;
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

caching_allocator_stats allocator_core::stats() const {
  caching_allocator_stats out;
  std::size_t largest_peak = 0;
  {
    const lock_guard lock(arenas_mutex_);
    const bool listed = reserve(out.arenas, reported_arenas_.size());
    const all_arena_locks held(reported_arenas_);  // a page that moves is not counted twice
    for (const auto &a : reported_arenas_) {
      held.assume_held(*a);
      const arena_stats figures = figures_of(*a);
      if (listed) out.arenas.push_back(figures);
      out.host_bytes += a->host_bytes();
      out.pages_recalled += a->counted().recalled;
      add(out.total, figures);
      largest_peak = std::max(largest_peak, figures.live_peak);
    }
  }
  out.total.live_peak = std::max({reported_live_peak_.load(), out.total.live, largest_peak});
  out.committed_peak = std::max(reported_committed_peak_.load(), out.total.committed);
  if (pages_ != nullptr) out.created_ahead = pages_->stats().free.bytes();
  out.page_bytes = page();
  out.growths = growths_;
  out.pages_created = created_;
  out.pages_moved = moved_;
  out.pages_released = released_;
  out.host_waits = host_waits_;
  out.out_of_memory = failed_;
  out.host_bytes += shared_->host_bytes() + history.host_bytes();
  return out;
}

void allocator_core::note_peaks(std::size_t live) {
  live_peak_ = std::max(live_peak_.load(), live);
  reported_live_peak_ = std::max(reported_live_peak_.load(), live);
  reported_committed_peak_ = std::max(reported_committed_peak_.load(), committed());
}

void allocator_core::reset_peaks() {
  const lock_guard growing(growth_mutex_);
  for (const auto &a : arenas_) {
    const lock_guard lock(a->lock);
    a->reset_peak();
  }
  reported_live_peak_ = reported_committed_peak_ = 0;
}

result<heap_map> allocator_core::map() const {
  const lock_guard growing(growth_mutex_);
  heap_map out;
  out.page_bytes = page();
  for (const auto &a : arenas_) {
    const lock_guard lock(a->lock);
    heap_map::arena &drawn = out.arenas.emplace_back();
    drawn.id = a->id;
    drawn.pool = a->pool;
    drawn.stream = thread_stream::reported(a->stream);
    for (const auto &r : a->reservations) drawn.reserved.push_back(r->range());
    for (const arena::chunk &c : a->chunks) drawn.reserved.push_back(c.range);
    a->describe(drawn.extents);
    sort_by_address(drawn);
  }
  if (history.enabled()) history.push({});
  return out;
}

result<std::size_t> allocator_core::usable_size(const void *block) const {
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  if (const arena *const a = addresses_.at(address)) {
    const lock_guard lock(a->lock);
    if (const std::size_t bytes = a->usable_size(address); bytes != 0) return bytes;
  }
  return make_error(errc::invalid_argument, "caching_allocator::usable_size",
                    "no block begins at this address, or it was freed already", address, 0,
                    error_unit::address);
}

// Why free memory stayed. `giving`: the arenas that could release pages.
release_report allocator_core::report_release(std::size_t released,
                                              const std::vector<arena *> &giving) {
  release_report out{.released = released};
  for (const auto &a : arenas_) {
    const lock_guard lock(a->lock);
    const arena_stats n = figures_of(*a);
    const std::size_t free = n.free_whole_pages + n.page_edges + n.cached;
    if (a->pinned) {
      out.private_pools += free + n.pending_free;
    } else if (std::find(giving.begin(), giving.end(), a.get()) == giving.end()) {
      out.capturing += free + n.pending_free;
    } else {
      const std::size_t whole = in_chunks() ? a->unused_chunk_bytes() : n.free_whole_pages;
      out.kept += whole;
      out.pending_free += n.pending_free;
      out.page_edges += free > whole ? free - whole : 0;
    }
  }
  return out;
}

}  // namespace stillmap
