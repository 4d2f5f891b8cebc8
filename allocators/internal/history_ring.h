// The ring behind a caching allocator's history and observer. Internal.
// docs/heap_map.md#statistics-map-and-history
//
// Disabled: one relaxed load, no memory. Enabled: all memory was allocated by start().
// Lock order: the ring's lock is a leaf; nothing is called under it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "stillmap/allocators/allocation_history.h"
#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap {

// The call stack of an operation, captured before any lock is taken; empty unless recorded.
struct call_stack {
  static constexpr unsigned most = 64;
  const void *frames[most];
  unsigned depth = 0;
};

// Threads: safe.
class history_ring {
 public:
  explicit history_ring(std::shared_ptr<heap_observer> observer) : observer_(std::move(observer)) {
    watched_ = observer_ != nullptr;
    update();
  }
  // Whether events are recorded, observed or traced, or requests are held.
  bool enabled() const { return on_.load(std::memory_order_relaxed); }
  bool recording() const;
  void notify_requests();  // enables the ring for a trace recorder
  // Whether requests are refused for now. They are taken off the fast path as for a recorder, so it
  // needs no test of its own.
  void hold_requests(bool hold);
  bool holds_requests() const { return held_.load(std::memory_order_relaxed); }

  // Starts recording, and discards earlier events.
  // Errors: invalid_argument (no events; more events or frames than supported: value, limit),
  //         out_of_memory (host memory: value, in bytes).
  status start(const history_options &o);
  void stop();  // keeps the recorded events
  void forget();

  // Leaves out its own frame and that of its caller, which must not be inlined.
  [[gnu::noinline]] call_stack capture() const;
  // Sets the time of the event. Does nothing while disabled.
  void push(history_event e, const call_stack *stack = nullptr);
  // Errors: out_of_memory (host memory).
  result<allocation_history> copy() const;
  std::size_t host_bytes() const;

 private:
  // The recorded events; the memory for them is allocated when recording starts.
  struct ring {
    history_options options;
    std::unique_ptr<history_event[]> events;
    std::unique_ptr<const void *[]> frames;  // stack_depth frames for each event
    std::size_t capacity = 0;                // events
    std::uint64_t recorded = 0;
    std::uint64_t epoch_ns = 0;  // steady clock to nanoseconds since 1970
  };

  bool tell(const history_event &e);
  void update() STILLMAP_REQUIRES(lock_) {
    on_.store(recording_ || watched_ || requests_ || held_, std::memory_order_relaxed);
  }

  std::atomic<bool> on_{false};
  std::atomic<unsigned> depth_{0};
  mutable mutex lock_;
  bool recording_ STILLMAP_GUARDED_BY(lock_) = false;
  bool requests_ STILLMAP_GUARDED_BY(lock_) = false;
  std::atomic<bool> watched_{false}, held_{false};
  const std::shared_ptr<heap_observer> observer_;
  ring ring_ STILLMAP_GUARDED_BY(lock_);
};

}  // namespace stillmap
