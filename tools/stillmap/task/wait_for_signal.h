// A program that goes on until it is told to end: by SIGTERM, SIGINT or SIGHUP, or by whoever holds
// the other end of its standard input, if that is a pipe or a socket.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>

#include "stillmap/vmm/physical_memory.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

// Make it before other threads are started: they leave the signals to it. One at a time.
// Threads: safe.
class until_told {
 public:
  // Errors: exit_failed (the system's).
  static outcome<std::unique_ptr<until_told>> create();
  ~until_told();
  until_told(const until_told &) = delete;

  std::stop_token told() const { return stop_.get_token(); }
  void tell() { stop_.request_stop(); }
  void wait();

 private:
  until_told(owned_fd signals, owned_fd over);
  void watch();
  owned_fd signals_, over_;
  std::stop_source stop_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::thread watcher_;
};

}  // namespace stillmap::tool
