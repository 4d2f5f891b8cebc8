// The device of the thread's current context, as the driver said when it was asked last: a request for memory need not
// ask again. Known only while no call of the program may have changed it.
#pragma once

#include <atomic>
#include <cstdint>

#include "preload/functions/function_list.h"

namespace stillmap::preload {

class known_device {
 public:
  // Since a context ended, in whatever thread. 0: nothing is known any more.
  static std::uint32_t era() noexcept { return era_.load(std::memory_order_acquire); }
  // -1: not known.
  static int get() noexcept {
    const std::uint32_t now = era();
    return now != 0 && of_thread_.era == now ? of_thread_.device : -1;
  }
  // `asked_in`: the era before the driver was asked, so that a context that ended meanwhile is not missed.
  static void set(std::uint32_t asked_in, int device) noexcept { of_thread_ = {asked_in, device}; }

  // Calls that no wrapper sees may change it: the driver's private functions, those of another namespace, those of a
  // driver that is newer than the table.
  static void never_again() noexcept { era_.store(0, std::memory_order_release); }

  // After a call of the program.
  template <function f>
  static void note_call() noexcept {
    if constexpr (ends_context(f)) {
      std::uint32_t now = era();
      while (now != 0 && !era_.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) {
      }
    } else if constexpr (changes_thread(f)) {
      of_thread_ = {};
    }
  }

 private:
  // As far as other threads may have it as their current one, too.
  static constexpr bool ends_context(function f) {
    using enum function;
    for (const function one :
         {cuCtxDestroy, cuCtxDestroy_v2, cuCtxDetach, cuDevicePrimaryCtxRelease,
          cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2,
          cuGreenCtxDestroy}) {
      if (f == one) return true;
    }
    return false;
  }
  static constexpr bool changes_thread(function f) {
    using enum function;
    for (const function one :
         {cuCtxAttach, cuCtxCreate, cuCtxCreate_v2, cuCtxCreate_v3, cuCtxCreate_v4, cuCtxPopCurrent,
          cuCtxPopCurrent_v2, cuCtxPushCurrent, cuCtxPushCurrent_v2, cuCtxSetCurrent, cuGLCtxCreate,
          cuGLCtxCreate_v2, cuVDPAUCtxCreate, cuVDPAUCtxCreate_v2}) {
      if (f == one) return true;
    }
    return false;
  }

  struct answer {
    std::uint32_t era = 0;
    int device = -1;
  };
  STILLMAP_FOR_SERVICE static std::atomic<std::uint32_t> era_;
  // In the block of each thread that exists from its beginning: this library is loaded with the program.
  STILLMAP_FOR_SERVICE static constinit thread_local answer of_thread_
      __attribute__((tls_model("initial-exec")));
};

}  // namespace stillmap::preload
