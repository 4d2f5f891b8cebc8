// A trace prepared for replay: flat, ids replaced by small dense slots, iterations unrolled, so
// that what is timed later is the allocator and not the looking up. Pure: no driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "stillmap/allocators/trace/trace.h"
#include "stillmap/vmm/error.h"

namespace stillmap::replay {

struct planned_op {
  trace_verb verb = trace_verb::iteration;
  std::uint32_t stream = 0;
  std::uint32_t slot = 0;   // of the block; wait: the stream that waits
  std::uint64_t bytes = 0;  // allocate
};

struct replay_plan {
  std::vector<planned_op> ops;  // an `iteration` after each one
  std::uint32_t slots = 0;
  std::uint32_t streams = 0;
  std::uint32_t iterations = 0;
  std::uint64_t requests = 0;  // allocate, free, use
  std::uint64_t peak_live_bytes = 0;
};

// What to replay. Without `iterations`: the trace as it stands. With it: what comes before the
// first boundary, then so many iterations. Beyond those that the trace has, the last ones are
// repeated: as many as begin and end with the same blocks live, by size and stream; who was
// allocated in one round is freed in the next. A trace without a boundary is one iteration, and
// what it leaves live is freed at its end. Errors: invalid_argument: no iterations asked for; more than
// there are of a trace that never comes back
//         to what it was.
// Sizes are divided by `shrink` and rounded up.
result<replay_plan> plan_replay(const trace &t, std::optional<unsigned> iterations,
                                std::uint64_t shrink = 1);

}  // namespace stillmap::replay
