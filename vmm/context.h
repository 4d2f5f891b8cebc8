// Scoped state of the calling thread: the current context and the stream capture mode. And the owner
// of a primary context.
#pragma once

#include <memory>
#include <optional>

#include "stillmap/vmm/driver.h"

namespace stillmap {

// Keeps a device's primary context retained. Movable owner; released once.
class primary_context {
 public:
  // Errors: the driver's. Cost: one call.
  static result<primary_context> retain(const driver &drv, int ordinal);

  context_handle get() const { return held_.get(); }

 private:
  struct releaser {
    using pointer = context_handle;
    const driver *drv;
    int ordinal;
    void operator()(context_handle) const noexcept;
  };
  primary_context(const driver &drv, int ordinal, context_handle handle)
      : held_(handle, {&drv, ordinal}) {}
  std::unique_ptr<void, releaser> held_;
};

// Makes `context` current on this thread for the guard's lifetime, then restores the previous one.
// Errors: kept in entered(), which must be checked before the context is used.
// Cost:   none within a context_scope of the same context; one call when the context is current already,
//         three otherwise.
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
  // If pushed: that of the context_scope around, which does not count inside.
  context_handle scope_ = nullptr;
  status entered_;
};

// A context_guard within which other guards of the same context cost no call, for code that makes many
// of them. A local variable only. What runs meanwhile leaves the current context as it found it, and calls
// this library in no other one, except within outside_scopes.
class context_scope {
 public:
  context_scope(const driver &drv, context_handle context);
  ~context_scope();
  context_scope(const context_scope &) = delete;
  context_scope &operator=(const context_scope &) = delete;

  const status &entered() const { return guard_.entered(); }

 private:
  const context_guard guard_;
  const context_handle outer_;  // the context of the scope around this one
};

// During its lifetime guards ask for the current context, whatever scopes are around: for a callback, which
// may call this library in another context. A local variable only.
class outside_scopes {
 public:
  outside_scopes();
  ~outside_scopes();
  outside_scopes(const outside_scopes &) = delete;
  outside_scopes &operator=(const outside_scopes &) = delete;

 private:
  const context_handle scope_;
};

// During its lifetime this thread may make calls that a stream capture on any thread forbids by
// default (creating and mapping memory, querying events), provided that they concern nothing that is
// captured. An allocator's calls are no part of a graph, so that no capture depends on them.
// Errors: kept in entered().
// Cost:   two calls; none before CUDA 10.1, which has no capture modes.
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
