#include "bench/kv/driver_meter.h"

#include <time.h>

#include <utility>

#include "bench/support/host.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::kv_bench {

driver_meter::driver_meter(const device &d) : driver_(d.driver()), time_(d.driver()) {
  held_before_ = bench::hostcuda_counters_of(driver_).physical_bytes;
  lap();
}

call_sum driver_meter::lap() {
  const std::uint64_t calls = bench::hostcuda_counters_of(driver_).calls;
  const std::uint64_t ns = time_.ns().value_or(0);
  const std::uint64_t calls_before = std::exchange(calls_, calls);
  const std::uint64_t ns_before = std::exchange(ns_, ns);
  return {calls - calls_before, static_cast<double>(ns - ns_before)};
}

std::uint64_t driver_meter::maps() const {
  return driver_.counts()[driver_call::MemMap];
}

std::uint64_t driver_meter::held_bytes() const {
  return bench::hostcuda_counters_of(driver_).physical_bytes - held_before_;
}

status worker_barrier::wait() {
  is_reached_ = false;
  STILLMAP_RETURN_IF_ERROR(pool_->in_background(this, [this] {
    const std::lock_guard lock(mutex_);
    is_reached_ = true;
    reached_.notify_one();
  }));
  std::unique_lock lock(mutex_);
  reached_.wait(lock, [this] { return is_reached_; });
  return {};
}

double thread_cpu_ns() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

}  // namespace stillmap::kv_bench
