// How many streams of the program capture a graph. The device cannot be waited for meanwhile, and an asynchronous
// allocation on such a stream is a node of the graph.
#pragma once

#include "preload/functions/abi.h"

namespace stillmap::preload {

class captures {
 public:
  static bool under_way() noexcept;
  // Whether this stream does, and that it does so no more: it was destroyed.
  static bool is_capturing(word stream) noexcept;
  static void note_ended() noexcept;
};

}  // namespace stillmap::preload
