// Primary contexts: kept alive while used, and made current only while needed.
#pragma once

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

// While it lives, calls of this thread that CUDA forbids while graphs are captured, such as
// cuMemAlloc, are made all the same: they are not part of what is captured, and spoil no capture.
// Where the driver cannot (before CUDA 10.1), nothing changes, and such a call fails.
// Cost: two calls.
class relaxed_capture_guard {
 public:
  explicit relaxed_capture_guard(const driver &drv);
  ~relaxed_capture_guard();
  relaxed_capture_guard(const relaxed_capture_guard &) = delete;
  relaxed_capture_guard &operator=(const relaxed_capture_guard &) = delete;

 private:
  const driver &driver_;
  result<capture_mode> before_;
};

}  // namespace stillmap
