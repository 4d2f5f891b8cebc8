// The private pools that PyTorch names by pairs of numbers: CUDA graphs and MemPools allocate from
// them. Internal. docs/pytorch.md#cuda-graphs
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <utility>
#include <vector>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::torch_plugin {

// PyTorch tells by a function which streams' requests go to a pool, because a stream joins a capture
// while it goes on. The allocator wants to be told of each stream: a stream is announced to it by
// the stream's first request for which the function says yes, and withdrawn when PyTorch ends the
// allocation to the pool.
//
// Threads: safe. Lock order: that of the pools > the allocator's.
class torch_pools {
 public:
  using id_type = std::pair<unsigned long long, unsigned long long>;
  using takes_stream = std::function<bool(stream_handle)>;

  // Whether requests may go to a pool: then each must call route() first. Wait-free.
  bool active() const { return active_.load(std::memory_order_relaxed) != 0; }
  // Errors: those of begin_allocate_to_pool; host memory; what PyTorch's function throws.
  status route(caching_allocator &heap, stream_handle s);

  // The first begin() for an id creates the pool, each later one adds a reference.
  status begin(caching_allocator &heap, id_type id, takes_stream takes);
  // Errors: invalid_argument (no allocation to that pool is in progress).
  status end(caching_allocator &heap, id_type id);
  // Removes one reference. After the last one, the pool's free pages become ordinary pages once the
  // work queued on the default stream and on all streams that the heap knows has completed.
  // Errors: invalid_argument (there is no such pool), the allocator's.
  status release(caching_allocator &heap, id_type id);

 private:
  struct pool {
    const caching_allocator *heap = nullptr;
    id_type id;
    private_pool in_heap;
    std::size_t references = 0;
  };
  struct allocation {
    caching_allocator *heap = nullptr;
    id_type id;
    private_pool to;
    takes_stream takes;
    std::vector<stream_handle> streams;  // that were announced
  };
  pool *find(const caching_allocator &heap, id_type id) STILLMAP_REQUIRES(lock_);

  mutex lock_;
  std::atomic<std::size_t> active_{0};  // the number of allocations
  std::list<pool> pools_ STILLMAP_GUARDED_BY(lock_);
  std::list<allocation> allocations_ STILLMAP_GUARDED_BY(lock_);  // in the order of begin()
};

}  // namespace stillmap::torch_plugin
