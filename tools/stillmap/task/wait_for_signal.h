// Waits until a long-running command is asked to end: by SIGTERM, SIGINT, SIGHUP, or the end of standard
// input if that is a pipe or a socket.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>

#include "stillmap/vmm/base/owned_fd.h"
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

  // Stop is requested as soon as the command has been asked to end.
  std::stop_token token() const { return stop_.get_token(); }
  // Waits until it has been asked this many times since the beginning. Signals of one kind that come
  // faster than they are read count as one. False: finish() was called.
  bool wait_for(unsigned times);
  // The command has nothing more to do.
  void finish();

 private:
  signal_waiter(owned_fd signals, owned_fd over);
  void watch();
  void ask(unsigned times);
  owned_fd signals_, over_;
  std::stop_source stop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned asked_ = 0;
  bool finished_ = false;
  std::thread watcher_;
};

}  // namespace stillmap::tool
