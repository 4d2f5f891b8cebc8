// Everything that is told of an allocator's requests and pages: the history, the user's observer and the trace.
// Internal. docs/heap_map.md#statistics-map-and-history
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "stillmap/allocators/engine/arena.h"
#include "stillmap/allocators/internal/history_ring.h"
#include "stillmap/allocators/trace/internal/trace_recorder.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/stream.h"

namespace stillmap {

// An allocation is recorded after it was made, and a free before it is done, so that the events of one address are
// in order across threads. Threads: safe. Each call costs one load while nothing is recorded.
class heap_observers {
 public:
  // `recorder`: nullptr where no trace is recorded.
  heap_observers(std::shared_ptr<heap_observer> observer, std::shared_ptr<trace_recorder> recorder,
                 int device);

  // Requests are told of, or refused for now. While that is false, they take the fast path.
  bool enabled() const { return history.enabled(); }

  // The allocator, which a trace knows by its address.
  void allocated(const void *allocator, const arena *in, void *block, std::size_t bytes,
                 stream_ref s, const call_stack &stack);
  void failed(const error &e, std::size_t bytes, stream_ref s, const call_stack &stack);
  void used(void *block, stream_ref s) const;
  void free_requested(const arena &a, void *block, std::optional<stream_ref> last_used_on,
                      const call_stack &stack);
  void free_completed(const arena &a, std::uint64_t address) STILLMAP_REQUIRES(a.lock());

  void page_moved(const arena &a, std::uint64_t to, std::uint64_t from, std::size_t bytes)
      STILLMAP_EXCLUDES(a.lock());
  void pages_mapped(const arena &a, const virtual_range &range) STILLMAP_EXCLUDES(a.lock());
  void pages_unmapped(const arena &a, const virtual_range &range) STILLMAP_EXCLUDES(a.lock());
  void addresses_reserved(const arena &a, const virtual_range &range) STILLMAP_EXCLUDES(a.lock());

  void iteration_began() const;
  void allocator_destroyed(const void *allocator) const;

  history_ring history;

 private:
  void page_event(history_action action, const arena &a, const virtual_range &range)
      STILLMAP_EXCLUDES(a.lock());

  const std::shared_ptr<trace_recorder> recorder_;
  const int device_;
};

}  // namespace stillmap
