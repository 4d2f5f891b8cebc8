// Long operations: progress callbacks, and Ctrl-C.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <future>
#include <stop_token>
#include <system_error>

#include "python/src/gil.h"

namespace stillmap::python {

// Calls `function(done, total)`. An exception in it stops the operation and is kept.
// Threads: any, without the GIL.
class progress_call {
 public:
  // None: no calls.
  explicit progress_call(nb::object function);
  void operator()(std::uint64_t done, std::uint64_t total);
  // Asks the operation to end.
  std::stop_token token() const { return stop_.get_token(); }
  bool wanted() const { return !function_.is_none(); }
  // Runs the handlers of signals that have arrived; what one raises stops the operation. With the
  // GIL, in the thread of the caller.
  void check_signals();
  // Throws what stopped the operation. With the GIL.
  void rethrow() { kept_.rethrow(); }

 private:
  nb::object function_;
  kept_exception kept_;
  std::stop_source stop_;
};

// Runs `f` on another thread, while this one lets Python's signal handlers run.
template <class F>
auto interruptible(progress_call &progress, F f) {
  refuse_after_fork();
  std::future<decltype(f())> answer;
  try {
    answer = std::async(std::launch::async, std::ref(f));
  } catch (const std::system_error &) {  // no thread: not interruptible
    const released_gil released;
    return f();
  }
  for (;;) {
    {
      const released_gil released;
      if (answer.wait_for(std::chrono::milliseconds(50)) == std::future_status::ready) {
        return answer.get();
      }
    }
    progress.check_signals();
  }
}

}  // namespace stillmap::python
