// Whether work may be queued that uses memory which the program frees.
//
// cuMemFree of the driver waits for the work of the context, and programs rely on it. Ours waits, too, unless no
// call that may have queued work has ended since the last wait: a program that only allocates and frees makes no
// driver call. A program with private functions of the driver (cuGetExportTable), as the CUDA runtime has them, waits
// each time: what they do is not documented. So does one with several contexts.
#pragma once

#include <atomic>

#include "preload/functions/work_flag.h"
#include "preload/service/memory/captures.h"
#include "preload/service/memory/contexts.h"
#include "stillmap/allocators/caching_allocator.h"

namespace stillmap::preload {

class queued_work {
 public:
  // Waits for all that is queued in the current context. While a stream captures a graph, nothing can wait:
  // `capturing`.
  enum class outcome { done, capturing, failed };
  // The device of the memory may be another one than the current context's. `heap`: as its device, which is asked for
  // only where something is queued.
  static outcome wait(driver_code &result, const caching_allocator &heap) noexcept {
    result = code::success;
    if (captures::under_way()) return outcome::capturing;
    return nothing() ? outcome::done : wait_now(result, heap.device().ordinal());
  }
  static outcome wait(driver_code &result, int ordinal) noexcept {
    result = code::success;
    if (captures::under_way()) return outcome::capturing;
    return nothing() ? outcome::done : wait_now(result, ordinal);
  }

  // From now on work may be queued by calls that no wrapper sees: each wait is a call.
  static void note_unseen_calls() noexcept { always_.store(true, std::memory_order_release); }

 private:
  // Once more at the end: a wait that fails says that work is there before it ends.
  static bool nothing() noexcept {
    const auto none = [] { return !work_may_be_queued.load(std::memory_order_acquire); };
    return !always_.load(std::memory_order_acquire) && !contexts::several() && none() &&
           waits_.load(std::memory_order_acquire) == 0 && none();
  }
  static outcome wait_now(driver_code &result, int ordinal) noexcept;
  static driver_code wait_for(int ordinal) noexcept;

  // Waits under way: what they wait for is not noted any more, and has not ended.
  static std::atomic<int> waits_;
  static std::atomic<bool> always_;
};

}  // namespace stillmap::preload
