// Waits for the end of a long-running command: SIGTERM, SIGINT, SIGHUP, or the end of standard input
// if that is a pipe or a socket.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>

#include "stillmap/vmm/physical_memory.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

// Create it before other threads are started, so that they inherit the blocked signals. Only one may
// exist at a time.
// Threads: safe.
class signal_waiter {
 public:
  // Errors: exit_failed (the system's).
  static outcome<std::unique_ptr<signal_waiter>> create();
  ~signal_waiter();
  signal_waiter(const signal_waiter &) = delete;

  std::stop_token token() const { return stop_.get_token(); }
  void request() { stop_.request_stop(); }
  void wait();

 private:
  signal_waiter(owned_fd signals, owned_fd over);
  void watch();
  owned_fd signals_, over_;
  std::stop_source stop_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::thread watcher_;
};

}  // namespace stillmap::tool
