// Primary contexts: kept alive while used, and made current only while needed. And what else a
// thread is given for a while.
#pragma once

#include <optional>

#include "stillmap/vmm/driver.h"

namespace stillmap {

// Keeps a device's primary context retained. Movable owner; released once.
class primary_context {
 public:
  // Errors: the driver's. Cost: one call.
  static result<primary_context> retain(const driver &drv, int ordinal);
  primary_context(primary_context &&other) noexcept;
  primary_context &operator=(primary_context &&other) noexcept;
  ~primary_context();

  context_handle get() const { return handle_; }

 private:
  primary_context(const driver &drv, int ordinal, context_handle handle)
      : driver_(&drv), ordinal_(ordinal), handle_(handle) {}
  const driver *driver_;
  int ordinal_;
  context_handle handle_;
};

// Makes `context` current on this thread for the guard's lifetime, and restores what was.
// Does nothing but look when it is current already.
// Errors are kept, not thrown: check ok() where a failed push matters.
// Cost: one call when already current, three otherwise.
class context_guard {
 public:
  context_guard(const driver &drv, context_handle context);
  ~context_guard();
  context_guard(const context_guard &) = delete;
  context_guard &operator=(const context_guard &) = delete;

  const status &entered() const { return entered_; }

 private:
  const driver &driver_;
  bool pushed_ = false;
  status entered_;
};

// While it lives, this thread may make calls that a capture on another thread, or on this one,
// forbids by default (creating and mapping memory, asking events), as long as they touch nothing
// that is captured. What an allocator does is no part of a graph, so no capture depends on it.
// Errors are kept, not thrown. Cost: two calls. Before CUDA 10.1 there are no modes: nothing then.
class relaxed_capture_mode {
 public:
  explicit relaxed_capture_mode(const driver &drv);
  ~relaxed_capture_mode();
  relaxed_capture_mode(const relaxed_capture_mode &) = delete;
  relaxed_capture_mode &operator=(const relaxed_capture_mode &) = delete;

  const status &entered() const { return entered_; }

 private:
  const driver &driver_;
  std::optional<capture_mode> before_;
  status entered_;
};

}  // namespace stillmap
