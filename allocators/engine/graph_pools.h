// The private pools of an allocator: memory that captured graphs replay on. Their reference counts, their arenas,
// and the streams they serve now. Internal. docs/allocator_graphs.md
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "stillmap/allocators/engine/heap.h"
#include "stillmap/allocators/engine/stream_tracker.h"
#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/stream.h"

namespace stillmap {

class graph_pools {
 public:
  graph_pools(heap &h, stream_tracker &streams) : heap_(h), streams_(streams) {}

  // As caching_allocator has them.
  result<private_pool> create() STILLMAP_EXCLUDES(growth);
  status retain(private_pool p) STILLMAP_EXCLUDES(growth);
  status release(private_pool p, const std::vector<stream_ref> &replayed_on)
      STILLMAP_EXCLUDES(growth);
  status begin_allocate(private_pool p, stream_ref named) STILLMAP_EXCLUDES(growth);
  status end_allocate(private_pool p, stream_ref named) STILLMAP_EXCLUDES(growth);

  // The number of the pool that serves a stream now; 0: none.
  std::uint64_t pool_of(stream_ref s) const STILLMAP_REQUIRES(growth);
  // Whether graphs of a released pool may still run on the stream; and the same as stream_use::forget for these.
  bool has_uses_on(stream_ref s) const STILLMAP_REQUIRES(growth);
  void forget(stream_ref s, std::uint64_t number, const fence &last_work) STILLMAP_REQUIRES(growth);
  // Ends released pools whose graphs have completed: their pages become ordinary pages.
  void reclaim(waiting_for wait) noexcept STILLMAP_REQUIRES(growth);

 private:
  struct served {
    stream_ref stream;
    arena *outside = nullptr;  // serves the stream again after end_allocate
  };
  struct pool {
    std::uint64_t id = 0;
    std::size_t holders = 1;        // reference count; 0: released
    std::vector<arena *> arenas;    // one for each stream that it ever served
    std::vector<served> capturing;  // the streams it serves now
    std::vector<stream_use> uses;   // streams on which its graphs may still run
  };

  result<pool *> find(private_pool p) STILLMAP_REQUIRES(growth);
  arena &arena_of(pool &p, stream_ref s) STILLMAP_REQUIRES(growth);
  bool is_reusable(arena &a) STILLMAP_REQUIRES(growth);

  heap &heap_;
  stream_tracker &streams_;
  std::uint64_t last_ STILLMAP_GUARDED_BY(growth) = 0;
  std::list<pool> all_ STILLMAP_GUARDED_BY(growth);  // a list: pointers stay valid
};

}  // namespace stillmap
