// Whether work may be queued that uses memory which the program frees.
//
// cuMemFree of the driver waits for the work of the context, and programs rely on it. Ours waits, too, unless no
// call that may have queued work has ended since the last wait: a program that only allocates and frees makes no
// driver call. A program with private functions of the driver (cuGetExportTable), as the CUDA runtime has them, waits
// each time: what they do is not documented. So does one with several contexts.
#pragma once

#include <atomic>

#include "preload/functions/work_flag.h"
#include "stillmap/allocators/caching_allocator.h"

namespace stillmap::preload {

class queued_work {
 public:
  // Waits for all that is queued in the current context. While a stream captures a graph, nothing can wait:
  // `capturing`.
  enum class outcome { done, capturing, failed };
  // The device of the memory may be another one than the current context's. `heap`: as its device, which is asked for
  // only where something is queued.
  static outcome wait(driver_code &code, const caching_allocator &heap) noexcept;
  static outcome wait(driver_code &code, int ordinal) noexcept;

  // From now on work may be queued by calls that no wrapper sees: each wait is a call.
  static void note_unseen_calls() noexcept { always_.store(true, std::memory_order_release); }

 private:
  static bool nothing() noexcept;
  static outcome wait_now(driver_code &code, int ordinal) noexcept;
  static driver_code wait_for(int ordinal) noexcept;

  // Waits under way: what they wait for is not noted any more, and has not ended.
  static std::atomic<int> waits_;
  static std::atomic<bool> always_;
};

}  // namespace stillmap::preload
