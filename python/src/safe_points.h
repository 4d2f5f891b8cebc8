// Where the threads of a program let a control server have their memory: between two steps of a loop. Knows
// nothing of Python.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stillmap/checkpoint/control/server_options.h"
#include "stillmap/vmm/base/fork_watch.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::python {

// One for the process: a thread that waits at its safe point waits for the servers of all devices.
//
// A request waits until every thread that has passed a safe point before, and has not ended, is at one. From then
// until the request is over, and as long as a tag is suspended for it, none of them goes on.
// Threads: safe. A forked child: nothing waits.
class safe_points {
 public:
  using tags_view = control::server_callbacks::tags_view;
  // What a thread sees that waits.
  enum class outcome { open, closed, waiting };
  // Memory that a request has, or has suspended.
  struct hold {
    int device;
    std::string tag;
  };

  // Never destroyed: threads outlive the interpreter. May throw std::bad_alloc the first time.
  static safe_points &all();

  // ---- for the program's threads ----

  // Whether to stop here. The first call of a thread adds it to those that requests wait for.
  // Cost: two loads.
  bool requested() noexcept {
    if (!this_thread_is_known()) [[unlikely]]
      add_this_thread();
    return requested_.load(std::memory_order_acquire);
  }
  // This thread uses no memory from here on, until leave(). Calls may be nested.
  void arrive() noexcept STILLMAP_EXCLUDES(mutex_);
  // Waits for `most`. `open`: no request has memory, and this thread has left. `closed`: a server was closed while
  // memory was suspended; this thread has left.
  outcome leave(std::chrono::milliseconds most) noexcept STILLMAP_EXCLUDES(mutex_);
  // Leaves without waiting, for an exception. No request is granted until end_interrupt(), and those that wait for
  // threads are refused.
  void begin_interrupt() noexcept STILLMAP_EXCLUDES(mutex_);
  void end_interrupt() noexcept STILLMAP_EXCLUDES(mutex_);
  // Refuses the requests that wait for threads.
  void refuse(error why) noexcept STILLMAP_EXCLUDES(mutex_);
  // What requests that wait for threads, or were granted, have. May throw std::bad_alloc.
  std::vector<hold> holds() const STILLMAP_EXCLUDES(mutex_);

  // ---- for the servers ----

  // Waits until all threads are at a safe point, and keeps them there for these tags.
  // Errors: busy (not all came in time: value, limit in ms; a thread was interrupted), operation_canceled (`stop`),
  //         what refuse() was given.
  status stop_threads(int device, tags_view tags, std::chrono::milliseconds timeout,
                      const std::stop_token &stop) STILLMAP_EXCLUDES(mutex_);
  // The memory of the tags is there again, or has no owner here. Harmless for other tags.
  void release(int device, std::string_view tag) noexcept STILLMAP_EXCLUDES(mutex_);
  // The server of the device is closed: nothing brings back through it what is suspended.
  void close(int device) noexcept STILLMAP_EXCLUDES(mutex_);

 private:
  struct key_order {
    using is_transparent = void;
    bool operator()(const auto &a, const auto &b) const {
      return std::pair<int, std::string_view>(a) < std::pair<int, std::string_view>(b);
    }
  };
  struct held {
    bool closed = false;
  };
  using holds_by_tag = std::map<std::pair<int, std::string>, held, key_order>;
  // Takes a thread that has ended out of the count.
  struct this_thread;

  static bool this_thread_is_known() noexcept;
  void add_this_thread() noexcept STILLMAP_EXCLUDES(mutex_);
  void changed_locked() noexcept STILLMAP_REQUIRES(mutex_);
  bool any_closed_locked() const noexcept STILLMAP_REQUIRES(mutex_);
  void withdraw_locked(int device, tags_view tags, const holds_by_tag &added) noexcept
      STILLMAP_REQUIRES(mutex_);

  const fork_watch born_;
  std::atomic<bool> requested_{false};  // whether holds_ has any
  mutable mutex mutex_;
  std::condition_variable_any changed_;
  std::size_t threads_ STILLMAP_GUARDED_BY(mutex_) = 0;
  std::size_t arrived_ STILLMAP_GUARDED_BY(mutex_) = 0;
  std::size_t interrupted_ STILLMAP_GUARDED_BY(mutex_) = 0;
  std::uint64_t refusals_ STILLMAP_GUARDED_BY(mutex_) = 0;
  std::optional<error> refusal_ STILLMAP_GUARDED_BY(mutex_);
  holds_by_tag holds_ STILLMAP_GUARDED_BY(mutex_);
};

}  // namespace stillmap::python
