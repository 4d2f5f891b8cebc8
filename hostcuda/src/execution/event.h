// Events. An event refers to the position of a stream at which it was last recorded.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "hostcuda/src/execution/engine.h"

namespace hostcuda {

// One recording. The operation that sets `when` shares it.
struct moment {
  std::shared_ptr<timeline> line;
  std::uint64_t tick = 0;
  vector_clock clock;  // includes (line, tick)
  std::chrono::steady_clock::time_point when{};

  bool done() const { return line->finished >= tick; }
};

struct event {
  CUevent handle = nullptr;
  context *ctx = nullptr;
  unsigned flags = 0;
  std::shared_ptr<moment> last;        // nullptr: not recorded yet
  std::shared_ptr<capture> cap;        // set if it was last recorded in a capture
  std::vector<graph_node *> cap_tail;  // position of the captured stream
};

// Returns nullptr for an unknown or dead handle. Requires engine::mu.
std::shared_ptr<event> find_event(CUevent handle);

}  // namespace hostcuda
