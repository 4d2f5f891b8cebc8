#include "stillmap/allocators/torch/internal/torch_pools.h"

#include <algorithm>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::torch_plugin {

torch_pools::pool *torch_pools::find(const caching_allocator &heap, id_type id) {
  for (pool &p : pools_) {
    if (p.heap == &heap && p.id == id) return &p;
  }
  return nullptr;
}

status torch_pools::route(caching_allocator &heap, stream_handle s) {
  const lock_guard lock(lock_);
  for (allocation &a : allocations_) {
    if (a.heap != &heap) continue;
    if (std::find(a.streams.begin(), a.streams.end(), s) != a.streams.end()) return {};
    if (!a.takes(s)) continue;
    return with_host_memory("stillmap_malloc", [&]() -> status {
      a.streams.reserve(a.streams.size() + 1);
      STILLMAP_RETURN_IF_ERROR(heap.begin_allocate_to_pool(a.to, s));
      a.streams.push_back(s);
      return {};
    });
  }
  return {};
}

status torch_pools::begin(caching_allocator &heap, id_type id, takes_stream takes) {
  return with_host_memory([&]() -> status {
    const lock_guard lock(lock_);
    std::list<allocation> begun(1);
    pool *known = find(heap, id);
    if (known != nullptr) {
      STILLMAP_RETURN_IF_ERROR(heap.retain_pool(known->in_heap));
    } else {
      std::list<pool> made(1);
      STILLMAP_ASSIGN_OR_RETURN(const private_pool p, heap.create_pool());
      made.front() = {&heap, id, p, 0};
      pools_.splice(pools_.end(), made);
      known = &pools_.back();
    }
    ++known->references;
    begun.front() = {&heap, id, known->in_heap, std::move(takes), {}};
    allocations_.splice(allocations_.end(), begun);
    active_.fetch_add(1, std::memory_order_relaxed);
    return {};
  });
}

status torch_pools::end(caching_allocator &heap, id_type id) {
  const lock_guard lock(lock_);
  const auto found =
      std::find_if(allocations_.begin(), allocations_.end(),
                   [&](const allocation &a) { return a.heap == &heap && a.id == id; });
  if (found == allocations_.end()) {
    return make_error(errc::invalid_argument, "no allocation to this pool is in progress",
                      id.second);
  }
  status all;
  for (const stream_handle s : found->streams) {
    if (status one = heap.end_allocate_to_pool(found->to, s); !one && all) all = std::move(one);
  }
  allocations_.erase(found);
  active_.fetch_sub(1, std::memory_order_relaxed);
  return all;
}

status torch_pools::release(caching_allocator &heap, id_type id) {
  return with_host_memory([&]() -> status {
    const lock_guard lock(lock_);
    pool *const p = find(heap, id);
    if (p == nullptr) {
      return make_error(errc::invalid_argument, "the pool does not exist or was released",
                        id.second);
    }
    // PyTorch does not say where the graphs were launched.
    std::vector<stream_ref> launched_on = {stream_ref::legacy()};
    for (const arena_stats &a : heap.stats().arenas) launched_on.push_back(a.stream);
    STILLMAP_RETURN_IF_ERROR(heap.release_pool(p->in_heap, launched_on));
    if (--p->references == 0) pools_.remove_if([&](const pool &x) { return &x == p; });
    return {};
  });
}

}  // namespace stillmap::torch_plugin
