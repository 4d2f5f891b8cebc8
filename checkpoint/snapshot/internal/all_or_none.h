// Runs one step for each part of a set concurrently; the first failure stops the other parts.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <stop_token>
#include <thread>

#include "stillmap/checkpoint/base/parallel_for.h"
#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::snapshot {

// The common outcome of all parts. Threads: safe. Lock order: that of a part's progress, mutex_.
class part_group {
 public:
  // A request on `cancel` stops all parts.
  explicit part_group(const std::stop_token &cancel)
      : on_cancel_(cancel, [this] { stop_.request_stop(); }) {}

  // Keeps the first failure: later ones are usually consequences of stopping.
  void fail(const error &e) {
    {
      const lock_guard lock(mutex_);
      if (outcome_) outcome_ = tl::unexpected(e);
    }
    stop_.request_stop();
  }
  // Stops the parts after a failure of one of them, or when the caller cancels.
  std::stop_token token() const { return stop_.get_token(); }
  status outcome() const {
    const lock_guard lock(mutex_);
    return outcome_;
  }
  // Calls `report` unless stopped; one call at a time.
  template <class Report>
  void report(const Report &report) {
    const lock_guard lock(mutex_);
    if (!stop_.stop_requested()) report();
  }

 private:
  mutable mutex mutex_;
  status outcome_ STILLMAP_GUARDED_BY(mutex_);
  std::stop_source stop_;
  std::stop_callback<std::function<void()>> on_cancel_;
};

// Calls work(part) -> status for each part, with up to 64 threads. No part is begun after a
// failure.
template <class Work>
status for_each_part(part_group &all, std::size_t parts, const Work &work) {
  std::atomic<std::size_t> next{0};
  checkpoint::parallel_for(static_cast<unsigned>(std::min<std::size_t>(parts, 64)), [&]() noexcept {
    for (std::size_t i = next++; i < parts && all.outcome(); i = next++) {
      const status ok = with_host_memory([&] { return work(i); });
      if (!ok) all.fail(ok.error());
    }
  });
  return all.outcome();
}

// The threads for each of `parts` that share `requested` threads (0: the number of processors, at
// most 8 a part).
inline unsigned share_of_threads(unsigned requested, std::size_t parts) {
  const unsigned n = requested != 0 ? requested : std::max(1u, std::thread::hardware_concurrency());
  const auto each = static_cast<unsigned>(std::max<std::size_t>(1, n / parts));
  return requested != 0 ? each : std::min(each, 8u);
}

}  // namespace stillmap::snapshot
