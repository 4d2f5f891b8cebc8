// Stream capture: records operations into a graph instead of running them. All functions require
// engine::mu.
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
  std::vector<std::weak_ptr<stream>> joined;  // includes the origin
  std::shared_ptr<graph> into;
  bool invalidated = false;
};

// Appends `op` to the capture of `s`.
void record_in_capture(stream &s, operation &&op);
// Makes the next operation of `s` depend on `tail`. If `s` is not capturing, it joins `cap`.
CUresult join_capture(const std::shared_ptr<stream> &s, const std::shared_ptr<capture> &cap,
                      const std::vector<graph_node *> &tail);
// For a stream that is destroyed: ends the capture that it has begun, or leaves the capture of
// another stream, which keeps the nodes.
void leave_capture(const std::shared_ptr<stream> &s);
// Ends the capture of all streams that take part in it, and removes it.
void drop_capture(capture &cap);
// As capture_forbids_unsafe_call() in execution.h.
bool capture_forbids_unsafe_call_locked();
// Invalidates the captures that forbid the use of the legacy stream of `exec`. Returns whether
// there were any.
bool invalidate_blocking(const execution &exec);

}  // namespace hostcuda
