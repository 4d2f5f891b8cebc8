// One replay: a plan, an allocator, a device with so much memory; what it took.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stillmap/allocators/replay/block_checker.h"
#include "stillmap/allocators/replay/replay_map.h"
#include "stillmap/allocators/replay/replay_plan.h"
#include "stillmap/allocators/replay/replay_target.h"

namespace stillmap::replay {

struct replay_options {
  const target_kind *kind = nullptr;
  std::optional<std::uint64_t> capacity;  // bytes of device memory; none: all that there is
  std::optional<check_depth> verify;
  bool map = false;      // look at the heap at its peak, or where it runs out of memory
  bool history = false;  // with its history, where it keeps one
  std::optional<std::size_t> look_after;  // map: after this operation instead, by its index
};

struct replay_result {
  std::uint64_t peak_live_bytes = 0;
  std::uint64_t peak_committed_bytes = 0;
  std::uint64_t ops = 0;
  // Of the iterations from the third on, where there are any; else of all. The median iteration's,
  // since others use the machine too; and all of them together, with those that were still
  // settling.
  double ns_per_op = 0, ns_per_op_mean = 0;
  driver_counts calls;  // the allocator's: not those of the trace's waits, nor of checking
  driver_counts last_iteration;
  std::optional<double> modelled_us;       // of those calls, where the driver has a table of costs
  std::optional<double> modelled_last_us;  // of those of the last iteration
  bool oom = false;
  std::string where_oom;  // "operation 1234 of 5678: 1 GiB on stream 0, with 3 GiB live and ..."
  std::uint64_t moved_bytes = 0;
  std::uint64_t bytes_checked = 0;
  std::uint64_t violations = 0;         // hostcuda's: work that touched what it must not
  std::optional<replay_moment> moment;  // where asked for, and the allocator knows
};

// Errors: invalid_argument: a capacity over the device's; the driver's, a wrong byte.
// Running
//         out of memory is a result.
result<replay_result> run(const device &d, const replay_plan &plan, const replay_options &o);

// The smallest capacity, in pages, at which a replay does not run out of memory; found by halving
// between the peak of live bytes and `enough`, at which one did not.
result<std::uint64_t> find_min_capacity(const device &d, const replay_plan &plan, replay_options o,
                                        std::uint64_t enough);

// One lock and unlock of an uncontended std::mutex, in ns: what the machine is worth just now.
double mutex_ns();

}  // namespace stillmap::replay
