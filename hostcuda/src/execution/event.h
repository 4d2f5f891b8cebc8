// Events. An event refers to the position of a stream at which it was last recorded.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "hostcuda/src/execution/engine.h"
#include "hostcuda/src/execution/shared_event.h"

namespace hostcuda {

// One recording. The operation that sets `when` shares it.
struct moment {
  std::shared_ptr<timeline> line;
  std::uint64_t tick = 0;
  vector_clock clock;  // includes (line, tick)
  std::chrono::steady_clock::time_point when{};
  // Of an event that other processes share: the number of the recording. Those of graph nodes are
  // not shared, and count as the last one.
  std::uint64_t number = ~std::uint64_t{0};

  // Set before other processes are told that an event they share is recorded, which is before done().
  std::atomic<bool> told{false};

  bool done() const { return line->finished >= tick; }
};

struct event {
  CUevent handle = nullptr;
  context *ctx = nullptr;
  unsigned flags = 0;
  std::shared_ptr<moment> last;          // nullptr: not recorded yet
  std::shared_ptr<capture> cap;          // set if it was last recorded in a capture
  std::vector<graph_node *> cap_tail;    // position of the captured stream
  std::shared_ptr<shared_event> shared;  // of an interprocess event

  // The number of the last recording, if another process has made it; otherwise 0.
  std::uint64_t recorded_elsewhere() const;
};

// What this process knows to precede a recording of another process: it may have waited for any
// recording of an interprocess event here. With `finished`, only those that are done. Requires
// engine::mu.
vector_clock precedes_other_processes(bool finished);

// nullptr for an unknown or dead handle. The reference is valid until engine::mu is released, which this
// requires.
const std::shared_ptr<event> &find_event(CUevent handle);

}  // namespace hostcuda
