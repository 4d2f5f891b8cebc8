// Detects that the process is a forked child of the one that created the object. CUDA does not work
// there, and a lock that another thread held at the fork stays locked.
#pragma once

#include <pthread.h>

#include <atomic>

namespace stillmap {

class fork_watch {
 public:
  fork_watch() : born_(generation().load(std::memory_order_relaxed)) {}
  // Cost: one load.
  bool in_child() const { return generation().load(std::memory_order_relaxed) != born_; }

 private:
  static std::atomic<unsigned> &generation() {
    static constinit std::atomic<unsigned> forks{0};
    return forks;
  }
  // Registered once, before any object exists.
  static inline const int registered_ = pthread_atfork(
      nullptr, nullptr, [] { generation().fetch_add(1, std::memory_order_relaxed); });
  unsigned born_;
};

}  // namespace stillmap
