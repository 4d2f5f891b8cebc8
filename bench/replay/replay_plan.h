// A trace prepared for replay: flat, with small dense slots for ids and unrolled iterations, so
// that only the allocator is timed. Needs no driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "stillmap/allocators/trace/trace.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::replay {

struct planned_op {
  trace_verb verb = trace_verb::iteration;
  std::uint32_t stream = 0;
  std::uint32_t slot = 0;   // of the block; wait: the stream that waits
  std::uint64_t bytes = 0;  // allocate
};

struct replay_plan {
  std::vector<planned_op> ops;  // an `iteration` after each one
  // Indices in `ops` of the requests that failed in the recorded program.
  std::vector<std::size_t> failed_ops;
  std::uint32_t slots = 0;
  std::uint32_t streams = 0;
  std::uint32_t iterations = 0;
  std::uint64_t requests = 0;  // allocate, free, use
  std::uint64_t peak_live_bytes = 0;
};

// Plans the replay of a trace. Without `iterations` it is replayed as recorded. With it: the events
// before the first boundary, then that many iterations. Iterations beyond the recorded ones repeat
// the last ones: as many as begin and end with the same live blocks by size and stream; a block
// allocated in one round is freed in the next. A trace without a boundary is one iteration, and its
// live blocks are freed at the end. A request that failed when it was recorded is made again, and its
// block freed at once; peak_live_bytes contains it.
// Errors: invalid_argument (no iterations, or more than recorded of a trace that never returns to
//         an earlier state). Sizes are divided by `shrink` and rounded up.
result<replay_plan> plan_replay(const trace &t, std::optional<unsigned> iterations,
                                std::uint64_t shrink = 1);

}  // namespace stillmap::replay
