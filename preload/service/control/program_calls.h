// Keeps the program's calls out of the driver while an operator's request has its memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <utility>

#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::preload {

// One for the process: calls of all devices are held together.
class program_calls {
 public:
  using tags_view = std::span<const std::string>;

  static program_calls &all() noexcept;

  // Holds new calls, and waits until those under way have ended and all that is queued in the program's contexts is
  // done. Until release() of all that was held, the program's threads wait where they call the driver.
  // Ensures: failure: the calls go on.
  // Errors:  busy (not all has ended by the deadline: value, limit in ms; a stream captures a graph), out_of_memory
  //          (host memory), operation_canceled (`stop`), the driver's.
  status hold(int ordinal, tags_view tags, std::chrono::milliseconds timeout,
              const std::stop_token &stop) STILLMAP_EXCLUDES(mutex_);
  // Lets calls go on once nothing is held any more. Harmless for what is not held.
  void release(int ordinal, tags_view tags) noexcept STILLMAP_EXCLUDES(mutex_);
  // At the end of the process: calls go on, and nothing is held any more.
  void end() noexcept STILLMAP_EXCLUDES(mutex_);

 private:
  using held_tags = std::set<std::pair<int, std::string>>;
  status close_locked(int ordinal, std::chrono::steady_clock::time_point deadline,
                      const std::stop_token &stop) STILLMAP_REQUIRES(mutex_);

  stillmap::mutex mutex_;
  held_tags held_ STILLMAP_GUARDED_BY(mutex_);
  bool ended_ STILLMAP_GUARDED_BY(mutex_) = false;
};

}  // namespace stillmap::preload
