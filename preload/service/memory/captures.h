// The captures of graphs that are under way. The device cannot be waited for meanwhile, and an asynchronous allocation
// on such a stream is a node of the graph.
#pragma once

#include <atomic>

#include "preload/functions/function_list.h"

namespace stillmap::preload {

class captures {
 public:
  // From before the driver is asked to begin one.
  static bool under_way() noexcept { return count_.load(std::memory_order_relaxed) > 0; }

  // The captures of a context end with it. Those that are marked before the call are it, not those of a later context
  // with the same handle.
  static void mark(word context) noexcept;
  static void end_marked(word context) noexcept;
  static void unmark(word context) noexcept;
  // Calls f, which destroys the stream, and so ends its capture.
  template <function f>
  static driver_code destroy(word stream) noexcept;

  // Of the captures that are under way, for the calls that begin and end them.
  static std::atomic<int> &counter() noexcept { return count_; }

  // A forked child has none: its driver does not work.
  static void leave_in_child() noexcept;

 private:
  static std::atomic<int> count_;
};

}  // namespace stillmap::preload
