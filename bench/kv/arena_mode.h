// What the two modes of Stillmap's arenas have in common: a pool of their own, a stream, and meters of what goes to the
// driver.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "bench/kv/cache_policy.h"
#include "bench/kv/driver_meter.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::kv_bench {

template <class Arena, class Options>
class arena_mode : public cache_policy {
 public:
  // Requires: the pool of `options`.
  status create(const device &d, Options options) {
    meter_.lap();
    const std::uint64_t maps = meter_.maps();
    STILLMAP_ASSIGN_OR_RETURN(arena_, Arena::create(d, std::move(options)));
    start_ = {meter_.lap(), meter_.maps() - maps};
    return {};
  }

  start_costs start() const override { return start_; }
  std::uint64_t held_bytes() const override { return meter_.held_bytes(); }
  std::uint64_t doubled_tokens() const override { return doubled_ * prefix_tokens; }

  status trim() override {
    STILLMAP_ASSIGN_OR_RETURN([[maybe_unused]] const std::size_t freed, arena_->trim());
    return {};
  }

 protected:
  arena_mode(const device &d, std::shared_ptr<page_pool> pool, stream s)
      : meter_(d), barrier_(std::move(pool)), stream_(std::move(s)) {}

  // Calls prepare(), waits until the worker is done, and calls begin().
  template <class Prepare, class Begin>
  result<step_costs> begin_step(const Prepare &prepare, const Begin &begin) {
    step_costs costs;
    STILLMAP_RETURN_IF_ERROR(prepare());
    STILLMAP_RETURN_IF_ERROR(barrier_.wait());
    costs.background = meter_.lap();
    const double began = thread_cpu_ns();
    STILLMAP_RETURN_IF_ERROR(begin());
    costs.begin_cpu_ns = thread_cpu_ns() - began;
    costs.begin = meter_.lap();
    return costs;
  }

  driver_meter meter_;
  worker_barrier barrier_;
  const stream stream_;
  std::unique_ptr<Arena> arena_;
  start_costs start_;
  std::uint64_t doubled_ = 0;  // parts
};

}  // namespace stillmap::kv_bench
