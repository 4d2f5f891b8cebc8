// The ring behind a caching allocator's history. Internal.
// docs/allocator.md#what-the-allocator-says-about-itself Off: one relaxed load, and no memory. On:
// what it needs was allocated when it was switched on. Lock order: the ring's lock is below
// everything else; nothing is called under it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "stillmap/allocators/allocation_history.h"
#include "stillmap/vmm/error.h"

namespace stillmap {

// The callers of an operation, taken before any lock. Where recording wants none, it costs nothing.
struct call_stack {
  static constexpr unsigned most = 64;
  const void *frames[most];
  unsigned depth = 0;
};

// Threads: safe.
class history_ring {
 public:
  // Whether anybody wants to be told.
  bool enabled() const { return on_.load(std::memory_order_relaxed); }
  bool recording() const;
  // Before anything is told.
  void watch(std::shared_ptr<heap_observer> by);
  void notify_requests();  // from now on it is on, whether or not anything is kept

  // Begins anew; what was recorded before is gone.
  // Errors: invalid_argument (no events, or more than it may have: value, limit), out_of_memory.
  status start(const history_options &o);
  void stop();  // what was recorded stays until start or forget
  void forget();

  // `skip`: frames of the allocator itself.
  void capture(call_stack &into, unsigned skip) const;
  // Sets the time. Costs nothing when off.
  void push(history_event e, const call_stack *stack = nullptr);
  // Errors: out_of_memory.
  result<allocation_history> copy() const;
  std::size_t host_bytes() const;

 private:
  std::uint64_t now() const;

  void update() { on_.store(recording_ || watched_ || requests_, std::memory_order_relaxed); }

  std::atomic<bool> on_{false};
  std::atomic<unsigned> depth_{0};
  mutable std::mutex lock_;
  bool recording_ = false, requests_ = false;
  std::atomic<bool> watched_{false};
  std::shared_ptr<heap_observer> observer_;
  history_options options_;
  std::unique_ptr<history_event[]> events_;
  std::unique_ptr<const void *[]> frames_;  // stack_depth for each event
  std::size_t capacity_ = 0;
  std::uint64_t recorded_ = 0;
  std::uint64_t epoch_ns_ = 0;  // what the steady clock's zero is since 1970
};

}  // namespace stillmap
