// How many streams of the program capture a graph. The device cannot be waited for meanwhile, and an asynchronous
// allocation on such a stream is a node of the graph.
#pragma once

#include <atomic>

#include "preload/functions/abi.h"

namespace stillmap::preload {

class captures {
 public:
  static bool under_way() noexcept { return streams_.load(std::memory_order_relaxed) > 0; }
  static bool is_capturing(word stream) noexcept;
  // A capture has ended with its stream, which was destroyed.
  static void note_ended() noexcept { streams_.fetch_sub(1, std::memory_order_relaxed); }
  static void note_begun() noexcept { streams_.fetch_add(1, std::memory_order_relaxed); }

 private:
  static std::atomic<int> streams_;  // that capture
};

}  // namespace stillmap::preload
