// The streams of an allocator's arenas: which arena serves which, whether they capture or are idle, fences behind
// their work, and what becomes of the arena of a stream that has ended. Internal. docs/allocator_streams.md
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "stillmap/allocators/engine/heap.h"
#include "stillmap/allocators/engine/pending_frees.h"
#include "stillmap/allocators/engine/stream_progress.h"
#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/stream.h"

namespace stillmap {

// Which work the host waits for. No event can be recorded on a stream that was destroyed: for a use there without one
// it waits for the device.
enum class waiting_for { nothing, destroyed_streams, everything };

class stream_tracker {
 public:
  explicit stream_tracker(heap &h) : heap_(h) {}

  // ---- arenas of streams ----

  // The arena that serves a stream: its own, one of a stream that has ended, or a new one. May run out.
  arena &arena_for(stream_ref s) STILLMAP_REQUIRES(growth);
  // Whether blocks of any arena are used on the stream, or an arena serves it.
  bool knows(stream_ref s) STILLMAP_REQUIRES(growth);
  // Ends the arenas of the stream, whose work is all behind `last_work`. Returns the number of that moment, by
  // which uses of other memory are forgotten. May run out, and then changes nothing.
  std::uint64_t forget(stream_ref s, const fence &last_work) STILLMAP_REQUIRES(growth);
  // Ends the arenas of streams that were destroyed without a word. While a known stream captures, nothing is done.
  void end_destroyed() STILLMAP_REQUIRES(growth);

  // ---- what a stream does ----

  // Fails where no event can be recorded. May run out.
  result<fence> fence_after(const arena &a) STILLMAP_REQUIRES(growth);
  // Whether the stream is capturing, or cannot be queried because another stream is.
  bool capturing(stream_ref s) const;
  bool capturing(const arena &a) const STILLMAP_EXCLUDES(a.lock());
  // `busy` where a stream captures: freeing memory could wait for work that never runs.
  status check_no_capture() const STILLMAP_REQUIRES(growth);
  // Whether the arena's stream is idle, so that its pages move without a wait.
  bool is_idle(arena &a) STILLMAP_REQUIRES(growth);
  // With `wait`, the host waits until it has passed.
  result<bool> has_passed(fence &idle, bool wait);
  status wait_for_device() const;

  // ---- uses of blocks on other streams ----

  // Records the event of a use. Fails where none was recorded, and none can be now: while the stream captures, or
  // without host memory.
  status record(stream_use &u) noexcept;
  // Events that cannot be recorded now are recorded when memory is needed.
  void record_uses(pending_block &b) noexcept;
  bool has_passed(stream_use &u, waiting_for wait) noexcept STILLMAP_REQUIRES(growth);
  std::uint64_t next_use_number() { return ++recorded_uses_; }

 private:
  bool adopt(arena &a, stream_ref s) STILLMAP_REQUIRES(growth);
  void end(arena &a, fence last_work) noexcept STILLMAP_REQUIRES(growth);

  heap &heap_;
  std::atomic<std::uint64_t> recorded_uses_{0};  // see stream_use
  stream_progress progress_ STILLMAP_GUARDED_BY(growth);
  std::size_t new_streams_ STILLMAP_GUARDED_BY(growth) = 0;  // since end_destroyed()
};

// Whether an error of the driver says that the stream was destroyed.
bool says_destroyed(const error &e);

}  // namespace stillmap
