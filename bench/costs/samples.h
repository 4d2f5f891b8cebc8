// Times of one call, and what is reported of them: the median and the 99th percentile.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "bench/support/median.h"

namespace stillmap::costs {

struct spread {
  std::size_t n = 0;
  double median_ns = 0;
  double p99_ns = 0;
};

// The smallest of `times` that at least `percent` of them do not exceed: always a measured time,
// the largest if there are few. 0 if there is none.
double percentile(std::vector<double> times, double percent);
using bench::median;

class samples {
 public:
  void add(double ns) { times_.push_back(ns); }
  void add(const samples &more);
  std::size_t size() const { return times_.size(); }
  spread summary() const;

 private:
  std::vector<double> times_;
};

// Samples by the name of the call, in the order in which calls came first.
class call_times {
 public:
  samples &of(const std::string &call);
  void add(const call_times &more);
  const std::vector<std::pair<std::string, samples>> &all() const { return all_; }

  // Makes the call, and keeps its time unless the call failed: a failure takes another path through
  // the driver.
  template <class Call>
  auto time(const char *name, Call &&call) {
    samples &into = of(name);
    const auto began = std::chrono::steady_clock::now();
    auto outcome = call();
    const auto ended = std::chrono::steady_clock::now();
    if (outcome) into.add(std::chrono::duration<double, std::nano>(ended - began).count());
    return outcome;
  }

 private:
  std::vector<std::pair<std::string, samples>> all_;
};

}  // namespace stillmap::costs
