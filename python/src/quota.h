// shared_quota as the classes SharedQuota, QuotaRoom and QuotaReclaimer.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "python/src/gil.h"
#include "stillmap/allocators/device_share.h"
#include "stillmap/vmm/base/fork_watch.h"

namespace stillmap::python {

// Threads: with the GIL. Calls work on a copy of the pointer, as in python_allocator.
class python_quota {
 public:
  // `device`: its ordinal; none: only the limit counts. Raises what shared_quota::open fails with.
  python_quota(const std::string &name, shared_quota_options options, std::optional<int> device);
  ~python_quota() { close(); }
  python_quota(const python_quota &) = delete;
  python_quota &operator=(const python_quota &) = delete;

  // Raises InvalidArgumentError after close(), and NotSupportedError in a forked child.
  std::shared_ptr<embedded_quota> use(const char *operation) const;
  std::uint64_t poll();
  // Allocators that have the quota keep it.
  void close();
  bool closed() const { return !quota_; }
  const std::string &name() const { return name_; }

 private:
  const fork_watch born_;
  std::shared_ptr<embedded_quota> quota_;
  std::string name_;
};

// Bytes that others have given, for the thread that has entered it.
class python_room {
 public:
  python_room(std::shared_ptr<embedded_quota> quota, std::uint64_t bytes)
      : quota_(std::move(quota)), bytes_(bytes) {}
  ~python_room();
  python_room(const python_room &) = delete;
  python_room &operator=(const python_room &) = delete;

  void enter();
  void exit();
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<embedded_quota> quota_;
  std::uint64_t bytes_;
  std::optional<std::thread::id> entered_by_;
};

// Calls Python when others need memory. The quota may hold it longer than its wrapper, which empties it, with the
// GIL.
struct reclaim_callback {
  nb::object function;
  std::uint64_t operator()(std::uint64_t bytes);
};

// Threads: with the GIL.
class python_reclaimer {
 public:
  // Raises TypeError: the function cannot be called.
  python_reclaimer(const std::shared_ptr<embedded_quota> &quota, reclaim_kind kind,
                   nb::object function);
  ~python_reclaimer() { close(); }
  python_reclaimer(const python_reclaimer &) = delete;
  python_reclaimer &operator=(const python_reclaimer &) = delete;

  // Waits until no call of it runs, unless it is called by that call.
  void close();
  bool closed() const { return registration_ == nullptr; }
  reclaim_kind kind() const { return kind_; }
  nb::object &function() { return callback_->function; }

 private:
  const fork_watch born_;
  reclaim_kind kind_;
  std::shared_ptr<reclaim_callback> callback_;
  std::unique_ptr<reclaimer_registration> registration_;
};

void bind_quota(nb::module_ &m);

}  // namespace stillmap::python
