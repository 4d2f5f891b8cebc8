// Memory that becomes free later: blocks that other streams used, and addresses whose old mapping is undone once
// the work queued there has completed. Internal. docs/allocator_streams.md
#pragma once

#include "stillmap/allocators/engine/graph_pools.h"
#include "stillmap/allocators/engine/heap.h"
#include "stillmap/allocators/engine/stream_tracker.h"

namespace stillmap {

class reclaimer {
 public:
  reclaimer(heap &h, stream_tracker &streams, graph_pools &pools)
      : heap_(h), streams_(streams), pools_(pools) {}

  // All that is due, after it has waited for the work of `wait`.
  void reclaim(waiting_for wait, const arena *but_pending_of = nullptr) noexcept
      STILLMAP_REQUIRES(growth);
  // Frees the pending blocks whose other streams have passed.
  void reclaim_pending(arena &a, waiting_for wait) noexcept STILLMAP_REQUIRES(growth);
  void reclaim_unmapping(arena &a, bool wait) noexcept STILLMAP_REQUIRES(growth);

 private:
  heap &heap_;
  stream_tracker &streams_;
  graph_pools &pools_;
};

}  // namespace stillmap
