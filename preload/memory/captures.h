// How many streams of the program capture a graph. The device cannot be waited for meanwhile, and an asynchronous
// allocation on such a stream is a node of the graph.
#pragma once

namespace stillmap::preload {

class captures {
 public:
  static bool under_way() noexcept;
};

}  // namespace stillmap::preload
