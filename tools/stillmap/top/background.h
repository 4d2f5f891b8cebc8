// What `stillmap top` does beside drawing, so that no task can make the screen wait: looks at the machine, and requests.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "tools/stillmap/machine/machine_view.h"

namespace stillmap::tool {

// A thread that looks at the machine at an interval.
class view_updater {
 public:
  view_updater(machine_watch &watch, std::chrono::milliseconds interval);
  // The latest view since the last call; nullopt: there is no newer one.
  std::optional<machine_view> take();
  // Why the latest look failed; empty: it did not.
  std::string trouble() const;

 private:
  void run(const std::stop_token &stop);
  outcome<machine_view> look();

  machine_watch &watch_;
  const std::chrono::milliseconds interval_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<machine_view> latest_;  // guarded by mutex_, as the next
  std::string trouble_;
  std::jthread thread_;  // destroyed first
};

// Requests to tasks, one at a time to each, in a thread. One that is under way at the end of the program goes on in its
// task.
class task_requests {
 public:
  enum class what : bool { suspend, resume };
  // All memory of the task; nothing where another request to it is under way, which message() says.
  void start(const task_view &t, what w);
  // What the latest request has come to, as a line; empty: there was none, or it was some seconds ago.
  std::string message() const;

 private:
  struct shared_state {
    std::mutex mutex;
    std::string message;  // guarded by mutex, as the others
    std::chrono::steady_clock::time_point at;
    std::set<std::string> sockets;  // with a request
  };
  std::shared_ptr<shared_state> state_ = std::make_shared<shared_state>();
};

}  // namespace stillmap::tool
