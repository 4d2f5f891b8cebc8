// What of a policy on hostcuda goes to the driver: calls, their modelled time, memory. And the arena's worker.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "bench/kv/cache_policy.h"
#include "bench/replay/simulator.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap::kv_bench {

class driver_meter {
 public:
  explicit driver_meter(const device &d);

  // All calls of the process since the last lap.
  call_sum lap();
  std::uint64_t maps() const;        // in all
  std::uint64_t held_bytes() const;  // of the device, since the meter was made

 private:
  const driver &driver_;
  replay::modelled_time time_;
  std::uint64_t calls_ = 0, ns_ = 0;
  std::uint64_t held_before_ = 0;
};

// Waits until all background work of the pool that was queued before is done, so that calls of the worker and of
// the engine's thread are told apart.
class worker_barrier {
 public:
  explicit worker_barrier(std::shared_ptr<page_pool> pool) : pool_(std::move(pool)) {}
  ~worker_barrier() { pool_->cancel_background(this); }
  worker_barrier(const worker_barrier &) = delete;
  worker_barrier &operator=(const worker_barrier &) = delete;
  status wait();

 private:
  const std::shared_ptr<page_pool> pool_;
  std::mutex mutex_;
  std::condition_variable reached_;
  bool is_reached_ = false;
};

// CPU time of the calling thread, in nanoseconds.
double thread_cpu_ns();

}  // namespace stillmap::kv_bench
