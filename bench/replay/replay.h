// Replays a plan on an allocator within a memory limit, and measures memory, time and driver calls.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/replay/block_checker.h"
#include "bench/replay/replay_map.h"
#include "bench/replay/replay_plan.h"
#include "bench/replay/replay_target.h"
#include "stillmap/allocators/report/timeline_picture.h"

namespace stillmap::replay {

struct replay_options {
  const target_kind *kind = nullptr;
  std::optional<std::uint64_t> capacity;  // bytes of device memory; none: all of it
  target_options settings;                // limit, wait_before_free and history are set by run()
  std::optional<check_depth> verify;
  bool map = false;      // take a map of the heap at its peak, or where it runs out of memory
  bool history = false;  // with its history, if the allocator keeps one
  std::optional<std::size_t> look_after;  // map: after the operation with this index instead
  // Measure the CPU time of each request. The clock takes longer than most requests: take ns_per_op
  // from a replay without.
  bool request_times = false;
  // Points of memory over the replay to take, at most; 0: none. Asking for the bytes held takes
  // longer than a request: take ns_per_op from a replay without. Not beside request_times.
  std::size_t timeline_points = 0;
};

// CPU time of the thread in a request, in nanoseconds, less the time it takes to read the clock.
struct request_times {
  double p50 = 0, p99 = 0, p999 = 0, max = 0;
};

struct replay_result {
  std::uint64_t peak_live_bytes = 0;
  std::uint64_t peak_committed_bytes = 0;
  std::uint64_t ops = 0;
  // The median and the mean of the iterations from the third on, or of all if there are fewer.
  // Other load on the machine disturbs the median least.
  double ns_per_op = 0, ns_per_op_mean = 0;
  // Of the same iterations, if requested.
  std::optional<request_times> cpu_ns;
  std::optional<std::uint64_t> host_bytes;  // memory of the allocator's books at the end, if known
  // Requests tried again after all cached memory was released, if known.
  std::optional<std::uint64_t> retries;
  driver_counts calls;  // of the allocator: without the waits of the trace and without checking
  driver_counts last_iteration;
  std::optional<double> modelled_us;       // of those calls, if the driver has a table of costs
  std::optional<double> modelled_last_us;  // of the calls of the last iteration
  bool oom = false;
  std::string where_oom;  // "operation 1234 of 5678: 1 GiB on stream 0, with 3 GiB live and ..."
  std::uint64_t moved_bytes = 0;
  std::uint64_t bytes_checked = 0;
  std::uint64_t violations = 0;          // reported by the simulator
  std::optional<replay_moment> moment;   // if requested and the allocator has maps
  std::vector<timeline_point> timeline;  // if requested
};

// Errors: invalid_argument (a capacity beyond the device's memory), corrupt (a wrong byte); the
//         driver's. Running out of memory is a result, not an error.
result<replay_result> run(const device &d, const replay_plan &plan, const replay_options &o);

// The smallest capacity in bytes, a multiple of the page size, at which a replay does not run out
// of memory: a binary search between the peak of live bytes, or `from` if that is more, and `enough`.
result<std::uint64_t> find_min_capacity(const device &d, const replay_plan &plan, replay_options o,
                                        std::uint64_t enough, std::uint64_t from = 0);

// Nanoseconds to lock and unlock an uncontended mutex: a measure of the machine's speed.
double mutex_ns();

}  // namespace stillmap::replay
