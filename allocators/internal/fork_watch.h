// Whether this process has been forked since. CUDA does not work in a child of a process that used
// it, and a lock that another thread held at that moment is held there forever.
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
  // Registered once, before anything can be watched.
  static inline const int registered_ = pthread_atfork(
      nullptr, nullptr, [] { generation().fetch_add(1, std::memory_order_relaxed); });
  unsigned born_;
};

}  // namespace stillmap
