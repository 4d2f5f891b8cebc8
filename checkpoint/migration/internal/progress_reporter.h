// Progress of a sender: kept for now(), and passed to send_options::on_progress.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "stillmap/checkpoint/migration/migration.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::migration {

// Threads: now() from any; the other functions one at a time.
class progress_reporter {
 public:
  explicit progress_reporter(const std::function<void(const progress &)> &on_progress)
      : on_progress_(on_progress) {}

  progress now() const {
    const lock_guard lock(mutex_);
    return progress_;
  }
  // Calls change(progress &); reports nothing.
  template <class Change>
  void update(Change &&change) {
    const lock_guard lock(mutex_);
    change(progress_);
  }
  void reached(step s) {
    update([&](progress &p) { p.step = s; });
    report();
  }
  // The task is about to be stopped.
  void stopping() {
    update([](progress &p) { p.stopping = true; });
    report();
  }
  // Counts a chunk of this round. Zeros are not sent.
  void add_chunk(std::uint64_t bytes, bool zeros) {
    update([&](progress &p) {
      if (!zeros) p.bytes_sent += bytes;
      p.round_sent += bytes;
    });
    const auto now = std::chrono::steady_clock::now();
    if (now - last_report_ < std::chrono::milliseconds(250)) return;
    last_report_ = now;
    report();
  }

 private:
  void report() const {
    if (on_progress_) on_progress_(now());
  }
  const std::function<void(const progress &)> &on_progress_;
  mutable mutex mutex_;
  progress progress_ STILLMAP_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point last_report_;
};

}  // namespace stillmap::migration
