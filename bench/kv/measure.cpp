#include "bench/kv/measure.h"

#include <algorithm>
#include <utility>

#include "bench/kv/scheduler.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::kv_bench {
namespace {

// The most in each interval, so that no peak is lost. Keeps at most twice as many samples as asked for: where there
// are more, two become one.
class sample_series {
 public:
  explicit sample_series(std::size_t most) : most_(std::max<std::size_t>(most, 1)) {}

  void add(const memory_sample &now) {
    highest_ = higher(highest_, now);
    if (++added_ < each_) return;
    all_.push_back(std::exchange(highest_, {}));
    added_ = 0;
    if (all_.size() < 2 * most_) return;
    for (std::size_t i = 0; i < most_; ++i) all_[i] = higher(all_[2 * i], all_[2 * i + 1]);
    all_.resize(most_);
    each_ *= 2;
  }
  std::vector<memory_sample> take() { return std::move(all_); }

 private:
  static memory_sample higher(const memory_sample &a, const memory_sample &b) {
    return {b.seconds, std::max(a.live_bytes, b.live_bytes),
            std::max(a.cached_bytes, b.cached_bytes), std::max(a.held_bytes, b.held_bytes),
            std::max(a.wanted_bytes, b.wanted_bytes)};
  }

  const std::size_t most_;
  std::size_t each_ = 1, added_ = 0;
  memory_sample highest_;
  std::vector<memory_sample> all_;
};

double quantile(std::vector<float> &all, double q) {
  if (all.empty()) return 0;
  const auto at =
      all.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(all.size() - 1));
  std::nth_element(all.begin(), at, all.end());
  return *at;
}

class measurement {
 public:
  measurement(cache_policy &policy, const policy_kind &kind, const serving_model &m,
              const std::vector<replay::serving_request> &requests, std::size_t samples)
      : policy_(policy), model_(m), scheduler_(m, requests), series_(samples) {
    out_.kind = &kind;
    out_.start = policy.start();
  }

  result<policy_outcome> run() {
    step_events events;
    while (scheduler_.next(events)) {
      const bool is_idle = events.empty();
      STILLMAP_ASSIGN_OR_RETURN(const step_costs costs,
                                is_idle ? policy_.idle() : policy_.step(events));
      add(costs, is_idle);
      sample(scheduler_.seconds());
    }
    const auto idle_steps = static_cast<std::uint64_t>(model_.idle_seconds / model_.step_seconds);
    out_.seconds = scheduler_.seconds();
    for (std::uint64_t i = 0; i < idle_steps; ++i) {
      STILLMAP_ASSIGN_OR_RETURN(const step_costs costs, policy_.idle());
      add(costs, true);
      sample(out_.seconds + static_cast<double>(i) * model_.step_seconds, true);
    }
    out_.idle_wanted = wanted_bytes();
    out_.idle_held = static_cast<double>(policy_.held_bytes());
    STILLMAP_RETURN_IF_ERROR(policy_.trim());
    out_.trimmed_held = static_cast<double>(policy_.held_bytes());
    finish();
    return std::move(out_);
  }

 private:
  double bytes(std::uint64_t tokens) const {
    return static_cast<double>(tokens) * static_cast<double>(model_.shape.bytes_per_token());
  }
  double live_bytes() const { return bytes(scheduler_.live_tokens()); }
  // A policy that keeps no prefixes is not to hold them.
  double cached_bytes() const {
    return out_.kind->keeps_prefixes ? bytes(scheduler_.cached_tokens()) : 0;
  }
  double wanted_bytes() const { return live_bytes() + cached_bytes(); }

  void add(const step_costs &costs, bool is_idle) {
    out_.background += costs.background;
    out_.begin += costs.begin;
    out_.inside += costs.inside;
    if (is_idle) return;
    ++out_.steps;
    out_.busy_steps += costs.inside.calls != 0;
    out_.busy_begins += costs.begin.calls != 0;
    out_.late_steps += costs.background.ns > model_.step_seconds * 1e9;
    begin_ns_.push_back(static_cast<float>(costs.begin_cpu_ns));
  }

  void sample(double seconds, bool is_after = false) {
    const double held = static_cast<double>(policy_.held_bytes());
    const double live = live_bytes(), cached = cached_bytes();
    series_.add({seconds, live, cached, held, live + cached});
    if (is_after) return;
    ++sampled_;
    out_.mean_held += held;
    out_.mean_wanted += live + cached;
    out_.mean_doubled += bytes(policy_.doubled_tokens());
    out_.peak_wanted = std::max(out_.peak_wanted, live + cached);
    out_.peak_held = std::max(out_.peak_held, held);
  }

  void finish() {
    for (double *sum : {&out_.mean_held, &out_.mean_wanted, &out_.mean_doubled}) *sum /= sampled_;
    out_.begin_median_ns = quantile(begin_ns_, 0.5);
    out_.begin_p99_ns = quantile(begin_ns_, 0.99);
    out_.answered = scheduler_.answered();
    out_.preempted = scheduler_.preempted();
    out_.shared = static_cast<double>(scheduler_.shared_tokens()) /
                  static_cast<double>(std::max<std::uint64_t>(scheduler_.prompt_tokens(), 1));
    out_.digest = scheduler_.digest();
    out_.samples = series_.take();
  }

  cache_policy &policy_;
  const serving_model model_;
  scheduler scheduler_;
  sample_series series_;
  policy_outcome out_;
  std::vector<float> begin_ns_;
  double sampled_ = 0;
};

}  // namespace

result<policy_outcome> measure(const device &d, const policy_kind &kind, const serving_model &m,
                               const std::vector<replay::serving_request> &requests,
                               std::size_t samples) {
  std::uint32_t longest = 1;
  for (const replay::serving_request &r : requests) {
    longest = std::max(longest, r.prompt + r.answer + 1);
  }
  const driver_counts before = d.driver().counts();
  STILLMAP_ASSIGN_OR_RETURN(const auto policy, kind.make(d, m, longest));
  STILLMAP_ASSIGN_OR_RETURN(policy_outcome out,
                            measurement(*policy, kind, m, requests, samples).run());
  out.calls = d.driver().counts() - before;
  return out;
}

}  // namespace stillmap::kv_bench
