// Serves all requests with one policy of memory, and adds up what it costs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/kv/cache_policy.h"
#include "bench/kv/serving_model.h"
#include "bench/replay/serving/serving.h"
#include "stillmap/vmm/base/driver_types.h"
#include "stillmap/vmm/device.h"

namespace stillmap::kv_bench {

// The most in some steps.
struct memory_sample {
  double seconds = 0;  // at its end
  double live_bytes = 0, cached_bytes = 0, held_bytes = 0, wanted_bytes = 0;
};

struct policy_outcome {
  const policy_kind *kind = nullptr;
  start_costs start;
  call_sum background, begin, inside;
  std::uint64_t steps = 0;        // that compute something
  std::uint64_t busy_steps = 0;   // of these: with driver calls between their begin and their end
  std::uint64_t busy_begins = 0;  // or while they begin
  std::uint64_t late_steps = 0;   // the background's time by the cost table is longer than a step
  double mean_wanted = 0, mean_held = 0, mean_doubled = 0;  // bytes, of all of these steps' time
  double peak_wanted = 0, peak_held = 0;
  double idle_wanted = 0, idle_held = 0,
         trimmed_held = 0;  // after the time without requests, and then trim()
  double begin_median_ns = 0, begin_p99_ns = 0;
  std::size_t answered = 0, preempted = 0;
  double seconds = 0, shared = 0;  // simulated; of prompt tokens, that were not computed
  std::uint64_t digest = 0;        // of the events
  driver_counts calls;             // of all time, by function; a model has none
  std::vector<memory_sample> samples;
};

// Requires: a device of its own for each measurement, so that what it holds is the policy's.
result<policy_outcome> measure(const device &d, const policy_kind &kind, const serving_model &m,
                               const std::vector<replay::serving_request> &requests,
                               std::size_t samples);

}  // namespace stillmap::kv_bench
