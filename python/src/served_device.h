// The control servers of this process, one for a device at most. Uses no object of Python.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "stillmap/checkpoint/control/server.h"
#include "stillmap/vmm/base/fork_watch.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::python {

struct serve_options {
  // Empty: an abstract name with the process's id, which `stillmap task list` finds. A folder: that name in it.
  std::string address{};
  // Without `quiesce`, requests wait for the safe points of the program's threads. Without `released`, handoff and
  // migration are refused.
  control::server_callbacks program{};
  // How long a request waits for safe points.
  std::chrono::milliseconds timeout{10'000};
};

// Lives until close(), also if nobody has a pointer to it. Threads: safe. Without the GIL.
class served_device {
 public:
  // Errors: busy (the device has a server: subject = its address), those of device::open, suspender::create and
  //         control::server::create; host memory.
  static result<std::shared_ptr<served_device>> create(int ordinal, serve_options options);
  // Null: the device has no server; it is being created; a forked child.
  static std::shared_ptr<served_device> known(int ordinal);
  static std::vector<std::shared_ptr<served_device>> all();
  // Closes all, each on a thread of its own, and waits for that so long.
  static void close_all(std::chrono::milliseconds most);

  served_device(int ordinal, serve_options options)
      : ordinal_(ordinal), options_(std::move(options)) {}
  served_device(const served_device &) = delete;

  // Waits for the current request, which it cancels as ~server() does, and for its callbacks. The tags that are
  // suspended stay so. A second call waits for the first. In a forked child it does nothing.
  // Errors: busy (a callback of a server is the caller).
  status close();
  bool closed() const noexcept;
  int ordinal() const noexcept { return ordinal_; }
  const std::string &address() const noexcept { return address_; }
  // The request that is being carried out; none once it is closed.
  control::job_status job();
  // Cancels the current request, if it can be cancelled, and waits for its end.
  void abort();

 private:
  enum class phase : int { created, open, closing, closed };

  status listen();
  control::server_options options_of_server();
  std::shared_ptr<control::server> server() const STILLMAP_EXCLUDES(mutex_);

  const fork_watch born_;
  const int ordinal_;
  serve_options options_;  // constant until closed
  std::string address_;    // constant once open
  std::atomic<phase> phase_{phase::created};
  std::atomic<bool> ended_{false};  // server_ has been destroyed
  mutable mutex mutex_;
  std::shared_ptr<control::server> server_ STILLMAP_GUARDED_BY(mutex_);
};

// Whether this thread runs a callback of a control server.
bool in_control_callback() noexcept;

}  // namespace stillmap::python
