// The streams of the program that capture a graph. The device cannot be waited for meanwhile, and an asynchronous
// allocation on such a stream is a node of the graph.
#pragma once

#include <atomic>

#include "preload/functions/abi.h"

namespace stillmap::preload {

class captures {
 public:
  static bool under_way() noexcept { return count_.load(std::memory_order_relaxed) > 0; }
  static bool is_capturing(word stream) noexcept;

  // Before a capture begins; then begin(), or leave_room() where it does not. False: the host has no memory to note it.
  static bool make_room() noexcept;
  static void leave_room() noexcept;
  static void begin(word stream, word context) noexcept;
  // The stream captures no more; all streams of the context are gone.
  static void end_stream(word stream) noexcept;
  static void end_context(word context) noexcept;

 private:
  static std::atomic<int> count_;
};

}  // namespace stillmap::preload
