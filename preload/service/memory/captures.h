// How many streams of the program capture a graph. The device cannot be waited for meanwhile, and an asynchronous
// allocation on such a stream is a node of the graph.
#pragma once

#include "preload/functions/abi.h"

namespace stillmap::preload {

class captures {
 public:
  static bool under_way() noexcept;
  static bool is_capturing(word stream) noexcept;
  // A capture has ended with its stream, which was destroyed.
  static void note_ended() noexcept;
};

}  // namespace stillmap::preload
