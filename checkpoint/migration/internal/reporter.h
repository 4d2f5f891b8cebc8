// What a sender tells those who watch it: at its steps, and a few times a second. Internal.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "stillmap/checkpoint/migration/migration.h"

namespace stillmap::migration {

// Threads: now() from any; the others one at a time.
class reporter {
 public:
  explicit reporter(const std::function<void(const progress &)> &at) : at_(at) {}

  progress now() const {
    const std::lock_guard lock(mutex_);
    return told_;
  }
  // Changes what there is to tell, by change(progress &).
  template <class Change>
  void note(Change &&change) {
    const std::lock_guard lock(mutex_);
    change(told_);
  }
  void reached(step at) {
    note([&](progress &p) { p.at = at; });
    tell();
  }
  // So much of this round; zeros were not sent.
  void went(std::uint64_t bytes, bool zeros) {
    note([&](progress &p) {
      if (!zeros) p.sent += bytes;
      p.round_sent += bytes;
    });
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(250)) return;
    last_ = now;
    tell();
  }

 private:
  void tell() const {
    if (at_) at_(now());
  }
  const std::function<void(const progress &)> &at_;
  mutable std::mutex mutex_;
  progress told_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace stillmap::migration
