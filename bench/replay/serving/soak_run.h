// Soak test: replays the requests of a simulated server on the caching allocator without waiting,
// and samples time, memory and driver calls per simulated hour.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "bench/replay/replay_target.h"
#include "bench/replay/serving/serving.h"

namespace stillmap::replay {

struct soak_options {
  double seconds = 24 * 3600;  // of the server's time
  double sample_seconds = 3600;
  std::uint64_t limit = UINT64_MAX;  // bytes of device memory
};

// One hour, or as long as a sample is.
struct soak_sample {
  double ends = 0;                        // seconds since the server began
  std::uint64_t answered = 0;             // requests, in this time
  std::uint64_t ops = 0;                  // requests to the allocator, in this time
  double ns_per_op = 0;                   // of this time
  double worst_ns_per_op = 0;             // of its worst minute
  std::uint64_t calls = 0;                // of the driver, in this time
  double modelled_us = 0;                 // of those calls, where the driver has a table of costs
  std::uint64_t moved = 0, recalled = 0;  // pages, in this time
  std::uint64_t live = 0, committed = 0, aliased = 0;  // bytes, at the end of it
  std::uint64_t host_bytes = 0;  // of the allocator's own tables, at the end of it
  std::uint64_t resident = 0;    // of this process, at the end of it
  double behind = 0;             // seconds that the next request has waited
};

struct soak_result {
  std::vector<soak_sample> samples;
  std::uint64_t ops = 0, answered = 0, refused = 0;
  std::uint64_t peak_live = 0, peak_committed = 0;
  std::uint64_t left_committed = 0;  // after everything was freed and trimmed
  std::uint64_t violations = 0;
};

// `each` sees every sample when its time is over.
// Errors: the driver's. A request that is refused for want of memory is counted.
result<soak_result> soak(const device &d, server &of, const soak_options &o,
                         const std::function<void(const soak_sample &)> &each = {});

}  // namespace stillmap::replay
