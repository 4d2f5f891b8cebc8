// What the parts of one allocator share: its arenas, its addresses, its limits and its figures. Internal.
//
// Lock order: growth_mutex > arenas_mutex > arena::lock (several in the order of arenas) > the locks of the
// observers. growth_mutex > the ledger's and the page pool's locks.
//
// Host memory: what runs out of it is std::bad_alloc in the engine, and an error at the public functions. It
// changes nothing. docs/allocator_growth.md#failures
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "stillmap/allocators/allocator_types.h"
#include "stillmap/allocators/engine/address_directory.h"
#include "stillmap/allocators/engine/arena.h"
#include "stillmap/allocators/engine/arena_locks.h"
#include "stillmap/allocators/engine/arena_returns.h"
#include "stillmap/allocators/engine/growth_lock.h"
#include "stillmap/allocators/engine/heap_observers.h"
#include "stillmap/allocators/engine/shared_pages.h"
#include "stillmap/allocators/engine/stream_directory.h"
#include "stillmap/vmm/base/fork_watch.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/device.h"

namespace stillmap {

inline tl::unexpected<error> forked_error() {
  return make_error(errc::not_supported, "the process was forked: CUDA does not work in a child");
}

// Whether memory of the device is short, or of a limit or quota, so that other memory may serve.
inline bool is_device_short(const error &e) {
  return e.is(errc::out_of_memory) && e.code != std::errc::not_enough_memory;
}

// Any thread reads these.
struct allocator_counters {
  std::atomic<std::size_t> live_peak{0};
  // Since reset_peaks().
  std::atomic<std::size_t> reported_live_peak{0}, reported_committed_peak{0};
  std::atomic<std::uint64_t> growths{0}, created{0}, moved{0}, released{0}, host_waits{0},
      failed{0};
};

struct heap {
  // `page`: bytes. `chunks`: the device cannot map pages.
  heap(stillmap::device d, std::size_t page, bool chunks, caching_allocator_options o,
       std::shared_ptr<trace_recorder> recorder);
  heap(const heap &) = delete;

  bool in_child() const { return watch.in_child(); }
  // The most memory that the limits and the device allow. Bytes.
  std::size_t ceiling() const;

  // A new arena, which no stream is served by yet. May run out, and then changes nothing.
  arena &make_arena(stream_ref s) STILLMAP_REQUIRES(growth);
  arena_returns &returns_of(const arena &a) STILLMAP_REQUIRES(growth) { return returns[a.id - 1]; }
  // Merges what all arenas keep cached into their free memory.
  void flush_all() STILLMAP_REQUIRES(growth);

  // Sums, in bytes.
  std::size_t moved_bytes() const STILLMAP_REQUIRES(growth);  // lately: arena::moved
  std::size_t committed() const STILLMAP_REQUIRES(growth);
  std::size_t live() const STILLMAP_REQUIRES(growth);
  std::size_t pinned_free_bytes() const STILLMAP_REQUIRES(growth);  // free, in private pools
  void note_peaks(std::size_t live_bytes) STILLMAP_REQUIRES(growth);

  const fork_watch watch;
  const stillmap::device device;
  const std::size_t page_bytes;
  const bool in_chunks;
  const caching_allocator_options options;
  std::atomic<std::size_t> limit, soft_limit;
  heap_observers observers;
  allocator_counters counters;
  // Changes under the growth lock.
  const std::shared_ptr<shared_pages> shared = std::make_shared<shared_pages>();
  // Any thread looks up; they change under the growth lock.
  stream_directory streams;
  address_directory addresses;

  mutable std::mutex growth_mutex;
  arena_list arenas STILLMAP_GUARDED_BY(growth);
  // Of arena i + 1. A deque: they stay where they are.
  std::deque<arena_returns> returns STILLMAP_GUARDED_BY(growth);

  // The arenas again, for statistics, which do not wait for growth.
  mutable mutex arenas_mutex;
  arena_list reported_arenas STILLMAP_GUARDED_BY(arenas_mutex);
};

}  // namespace stillmap
