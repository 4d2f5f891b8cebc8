#include "bench/costs/samples.h"

#include <algorithm>
#include <cmath>

namespace stillmap::costs {

double percentile(std::vector<double> times, double percent) {
  if (times.empty()) return 0;
  const double rank = std::ceil(percent / 100 * static_cast<double>(times.size()));
  const std::size_t at = std::clamp<std::size_t>(static_cast<std::size_t>(rank), 1, times.size());
  const auto place = times.begin() + static_cast<std::ptrdiff_t>(at - 1);
  std::nth_element(times.begin(), place, times.end());
  return *place;
}

void samples::add(const samples &more) {
  times_.insert(times_.end(), more.times_.begin(), more.times_.end());
}

spread samples::summary() const {
  return {times_.size(), median(times_), percentile(times_, 99)};
}

samples &call_times::of(const std::string &call) {
  for (auto &[name, times] : all_) {
    if (name == call) return times;
  }
  return all_.emplace_back(call, samples()).second;
}

void call_times::add(const call_times &more) {
  for (const auto &[name, times] : more.all_) of(name).add(times);
}

}  // namespace stillmap::costs
