// Events: the moment a stream had reached when they were last recorded.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "hostcuda/src/execution/engine.h"

namespace hostcuda {

// One recording. Shared with the operation that fills in the time when the stream gets there.
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
  std::shared_ptr<moment> last;        // nullptr: never recorded
  std::shared_ptr<capture> cap;        // last recorded in this capture instead
  std::vector<graph_node *> cap_tail;  // where the captured stream stood
};

// With the engine's lock held; nullptr for a foreign or dead handle.
std::shared_ptr<event> find_event(CUevent handle);

}  // namespace hostcuda
