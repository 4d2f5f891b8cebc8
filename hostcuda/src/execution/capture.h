// Stream capture: operations recorded into a graph instead of run. With the engine's lock held.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "hostcuda/src/execution/engine.h"
#include "hostcuda/src/execution/graph.h"

namespace hostcuda {

struct capture {
  std::uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id owner;
  std::weak_ptr<stream> origin;
  std::vector<std::weak_ptr<stream>> joined;  // the origin too
  std::shared_ptr<graph> into;
  bool invalidated = false;
};

// Appends `op` to the capture `s` takes part in.
void record_in_capture(stream &s, operation &&op);
// `s` waits for where another stream of the same or (if not capturing yet) this capture stood.
CUresult join_capture(const std::shared_ptr<stream> &s, const std::shared_ptr<capture> &cap,
                      const std::vector<graph_node *> &tail);
// Frees all streams of the capture and forgets it.
void drop_capture(capture &cap);
// capture_forbids_unsafe_call() (execution.h).
bool capture_forbids_unsafe_call_locked();
// Invalidates the captures that forbid using the legacy stream of `exec`; whether there were any.
bool invalidate_blocking(const execution &exec);

}  // namespace hostcuda
