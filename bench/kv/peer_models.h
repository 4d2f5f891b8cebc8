// What the models of other policies share. They count what a policy would ask of the driver, and make no call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/kv/cache_policy.h"
#include "bench/replay/simulator.h"

namespace stillmap::kv_bench {

// Time of a driver call on `bytes`, by the cost table.
class call_price {
 public:
  explicit call_price(const char *function, std::size_t bytes = 0);
  void charge(call_sum &to, std::uint64_t calls = 1) const {
    to.calls += calls;
    to.ns += static_cast<double>(calls) * ns_;
  }

 private:
  double ns_;
};

// Parts of prompts that sequences have computed though another has the same.
class doubled_parts {
 public:
  explicit doubled_parts(std::uint32_t batch) : of_(batch) {}
  void see(const step_events &events) {
    for (const step_events::part &p : events.computed) {
      if (p.is_new) continue;
      ++of_[p.sequence];
      ++all_;
    }
    for (const sequence_number s : events.ended) {
      all_ -= of_[s];
      of_[s] = 0;
    }
  }
  std::uint64_t tokens() const { return all_ * prefix_tokens; }

 private:
  std::vector<std::uint64_t> of_;
  std::uint64_t all_ = 0;
};

}  // namespace stillmap::kv_bench
