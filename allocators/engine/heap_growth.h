// Serves a request that the memory of its arena cannot: by what has become free, then by memory of more and more
// effort. Internal. docs/allocator_growth.md
#pragma once

#include "stillmap/allocators/engine/heap.h"
#include "stillmap/allocators/engine/memory_source.h"
#include "stillmap/allocators/engine/reclaimer.h"
#include "stillmap/allocators/engine/stream_tracker.h"

namespace stillmap {

class heap_growth {
 public:
  heap_growth(heap &h, stream_tracker &streams, reclaimer &r, memory_source &source)
      : heap_(h), streams_(streams), reclaimer_(r), source_(source) {}

  // `pending`: the arena of the stream had pending blocks. May run out of host memory.
  result<void *> grow(stream_ref s, const block_request &r, bool pending) STILLMAP_EXCLUDES(growth);

 private:
  // `missing`: what the quota or the device would have to give for it; set where it fails.
  result<void *> grow_once(stream_ref s, const block_request &r, bool first, bool pending,
                           std::size_t &missing) STILLMAP_EXCLUDES(growth);
  result<void *> allocate_after_reclaim(arena &a, const block_request &r) STILLMAP_REQUIRES(growth);
  result<void *> find_memory(arena &a, const block_request &r, bool reclaimed)
      STILLMAP_REQUIRES(growth);

  heap &heap_;
  stream_tracker &streams_;
  reclaimer &reclaimer_;
  memory_source &source_;
};

}  // namespace stillmap
