// One thing for each part of a set, at the same time. Internal.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <optional>
#include <thread>

#include "stillmap/checkpoint/image/failure.h"
#include "stillmap/checkpoint/image/internal/parallel_for.h"

namespace stillmap::snapshot {

// What the parts tell one another. Threads: safe.
class company {
 public:
  // The first failure counts: those after it are commonly of giving up.
  void fail(const image::failure &why) {
    const std::lock_guard lock(mutex_);
    if (!why_) why_ = why;
    failed_ = true;
  }
  bool failed() const { return failed_; }
  image::done outcome() const {
    const std::lock_guard lock(mutex_);
    if (why_) return tl::unexpected(*why_);
    return {};
  }
  // Tells the user, one at a time. False: the work is to be given up.
  template <class Tell>
  bool tell(const Tell &tell) {
    const std::lock_guard lock(mutex_);
    return !failed_ && tell();
  }

 private:
  mutable std::mutex mutex_;
  std::optional<image::failure> why_;
  std::atomic<bool> failed_{false};
};

// Calls work(part) -> image::done for each, on a thread of its own where there is one; after a
// failure the others are not begun.
template <class Work>
image::done for_each_part(company &all, std::size_t parts, const Work &work) {
  std::atomic<std::size_t> next{0};
  image::parallel_for(static_cast<unsigned>(std::min<std::size_t>(parts, 64)), [&] {
    for (std::size_t i = next++; i < parts && !all.failed(); i = next++) {
      if (const image::done ok = work(i); !ok) all.fail(ok.error());
    }
  });
  return all.outcome();
}

// Threads for one of them.
inline unsigned share_of_threads(unsigned asked, std::size_t parts) {
  const unsigned n = asked != 0 ? asked : std::max(1u, std::thread::hardware_concurrency());
  const auto each = static_cast<unsigned>(std::max<std::size_t>(1, n / parts));
  return asked != 0 ? each : std::min(each, 8u);
}

}  // namespace stillmap::snapshot
