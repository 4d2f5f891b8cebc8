#include "stillmap/vmm/context.h"

#include <utility>

#include "stillmap/vmm/base/try.h"

namespace stillmap {

result<primary_context> primary_context::retain(const driver &drv, int ordinal) {
  return drv.retain_primary_context(ordinal).map(
      [&](context_handle handle) { return primary_context(drv, ordinal, handle); });
}

void primary_context::releaser::operator()(context_handle) const noexcept {
  report_if_failed(drv->release_primary_context(ordinal));
}

namespace {

constinit thread_local context_handle scoped = nullptr;  // of the innermost scope

}  // namespace

context_guard::context_guard(const driver &drv, context_handle context) : driver_(drv) {
  if (context == scoped && context != nullptr) return;
  const result<context_handle> current = drv.current_context();
  if (!current) {
    entered_ = tl::unexpected<error>(current.error());
  } else if (*current != context) {
    entered_ = drv.push_context(context);
    pushed_ = entered_.has_value();
    if (pushed_) scope_ = std::exchange(scoped, nullptr);
  }
}

context_guard::~context_guard() {
  if (!pushed_) return;
  scoped = scope_;
  report_if_failed(driver_.pop_context());
}

outside_scopes::outside_scopes() : scope_(std::exchange(scoped, nullptr)) {}

outside_scopes::~outside_scopes() {
  scoped = scope_;
}

context_scope::context_scope(const driver &drv, context_handle context)
    : guard_(drv, context), outer_(scoped) {
  if (guard_.entered()) scoped = context;
}

context_scope::~context_scope() {
  scoped = outer_;
}

relaxed_capture_mode::relaxed_capture_mode(const driver &drv) : driver_(drv) {
  if (!drv.has(driver_call::ThreadExchangeStreamCaptureMode)) return;
  const auto was = drv.exchange_capture_mode(capture_mode::relaxed);
  if (was) {
    before_ = *was;
  } else {
    entered_ = tl::unexpected<error>(was.error());
  }
}

// The mode is the caller's: what does not go back at once is tried again.
relaxed_capture_mode::~relaxed_capture_mode() {
  if (!before_) return;
  auto back = driver_.exchange_capture_mode(*before_);
  if (!back) back = driver_.exchange_capture_mode(*before_);
  if (!back) report_background_error(back.error());
}

}  // namespace stillmap
