// A spin lock for an arena: one exchange to lock, one store to unlock. Requests hold it for nanoseconds,
// nearly always by the one thread that uses the stream, and never across a driver call.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "stillmap/vmm/base/mutex.h"

namespace stillmap {

class STILLMAP_CAPABILITY("arena lock") arena_lock {
 public:
  [[gnu::always_inline]] void lock() noexcept STILLMAP_ACQUIRE() {
    if (held_.exchange(1, std::memory_order_acquire) != 0) wait();
  }
  void unlock() noexcept STILLMAP_RELEASE() { held_.store(0, std::memory_order_release); }
  // Tells the analysis what it cannot see: that a lambda is called by whoever holds the lock.
  void assume_held() const noexcept STILLMAP_ASSERT_CAPABILITY(this) {}

 private:
  // Not inlined, so that lock() is.
  [[gnu::noinline]] void wait() noexcept {
    for (int spins = 0;; ++spins) {
      // A load leaves the cache line with the holder, which may be descheduled.
      while (held_.load(std::memory_order_relaxed) != 0) {
        if (++spins > 64) std::this_thread::yield();
      }
      if (held_.exchange(1, std::memory_order_acquire) == 0) return;
    }
  }
  std::atomic<std::uint32_t> held_{0};
};

}  // namespace stillmap
