// Where driver calls of the program wait while its memory is suspended.
//
// Every wrapped call passes the door. While it is open that costs a store before and after the call, and no
// atomic read-modify-write: each thread counts its own calls under way, and whoever closes the door makes all
// threads' stores visible (membarrier) before it counts them. Where the kernel has no membarrier, a fence in
// each call takes its place.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "preload/functions/abi.h"

namespace stillmap::preload {

class door {
 public:
  // The calls of one thread. Its memory is never freed; a thread that begins takes that of one that ended.
  struct alignas(64) thread_calls {
    std::atomic<std::uint32_t> under_way{0};
    std::atomic<bool> taken{false};
    thread_calls *next = nullptr;
  };

  // A call that is under way while this object lives. Waits first while the door is closed, unless the call is one
  // that goes on then.
  class passage {
   public:
    [[gnu::always_inline]] explicit passage(bool waits) noexcept {
      if (!waits) return;
      calls_ = mine != nullptr ? mine : enter_thread();
      const std::uint32_t before = calls_->under_way.load(std::memory_order_relaxed);
      calls_->under_way.store(before + 1, std::memory_order_relaxed);
      if (fence_in_calls.load(std::memory_order_relaxed)) [[unlikely]]
        std::atomic_thread_fence(std::memory_order_seq_cst);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      // A call from within a call goes on: the outer one is waited for.
      if (closed.load(std::memory_order_relaxed) != 0 && before == 0) [[unlikely]]
        wait(*calls_);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    [[gnu::always_inline]] ~passage() {
      if (calls_ == nullptr) return;
      calls_->under_way.store(calls_->under_way.load(std::memory_order_relaxed) - 1,
                              std::memory_order_release);
    }
    passage(const passage &) = delete;
    passage &operator=(const passage &) = delete;

   private:
    thread_calls *calls_ = nullptr;
  };

  // Once, before the first close(). Until then each call has a fence.
  STILLMAP_FOR_SERVICE static void prepare() noexcept;
  // Holds new calls, and waits until those under way have ended. Calls of this library's own code do not pass
  // the door. Returns false where some have not ended by the deadline, or once `cancelled` is true: the door is
  // open again.
  // Requires: the door is open, and no other thread closes it.
  STILLMAP_FOR_SERVICE static bool close(std::chrono::steady_clock::time_point deadline,
                                         const std::atomic<bool> &cancelled) noexcept;
  // Lets held calls go on.
  STILLMAP_FOR_SERVICE static void open() noexcept;
  // Calls of this thread pass from now on, and are not waited for. For the service's own threads: what they call of the
  // program's (its operator new, a library before the driver) may call the driver, too.
  STILLMAP_FOR_SERVICE static void let_this_thread_pass() noexcept;

 private:
  class leaving_key;
  static thread_calls *enter_thread() noexcept;
  static void leave_thread(void *calls) noexcept;
  static void become_child() noexcept;
  static void wait(thread_calls &calls) noexcept;

  static constinit thread_local thread_calls *mine;
  static std::atomic<std::uint32_t> closed;  // a futex: 1 while calls are held
  static std::atomic<bool> fence_in_calls;
};

}  // namespace stillmap::preload
