#include "stillmap/vmm/stream.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "stillmap/vmm/device.h"
#include "stillmap/vmm/internal/device_state.h"
#include "stillmap/vmm/internal/try.h"

namespace stillmap {

// ---- stream ----

struct stream::state {
  device of;  // keeps the context alive
};

result<stream> stream::create(const device &d, bool non_blocking) {
  const context_guard guard(d.driver(), d.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  STILLMAP_ASSIGN_OR_RETURN(const auto handle, d.driver().create_stream(non_blocking));
  stream out;
  out.handle_ = handle;
  out.state_ = std::make_shared<state>(state{d});
  return out;
}

stream::stream(stream &&other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), state_(std::move(other.state_)) {}

stream &stream::operator=(stream &&other) noexcept {
  // The destructor of `other` destroys the old stream.
  std::swap(handle_, other.handle_);
  std::swap(state_, other.state_);
  return *this;
}

stream::~stream() {
  if (handle_ == nullptr) return;
  const driver &drv = state_->of.driver();
  const context_guard guard(drv, state_->of.context());
  report_if_failed(guard.entered() ? drv.destroy_stream(handle_) : guard.entered());
}

status stream::synchronize() const {
  if (handle_ == nullptr) {
    return make_error(errc::invalid_argument, "stream::synchronize", "the stream was moved from");
  }
  const context_guard guard(state_->of.driver(), state_->of.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  return state_->of.driver().synchronize_stream(handle_);
}

result<bool> stream::idle() const {
  if (handle_ == nullptr) {
    return make_error(errc::invalid_argument, "stream::idle", "the stream was moved from");
  }
  const context_guard guard(state_->of.driver(), state_->of.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  return state_->of.driver().stream_idle(handle_);
}

// ---- fence ----

namespace detail {

struct recorded_event {
  recorded_event(std::shared_ptr<device_core> c, event_handle e, bool pooled)
      : core(std::move(c)), event(e), from_pool(pooled) {}
  recorded_event(const recorded_event &) = delete;
  ~recorded_event() {
    if (from_pool) core->events.give_back(event);
  }

  std::shared_ptr<device_core> core;
  event_handle event;
  bool from_pool;                   // otherwise the program owns it
  std::atomic<bool> passed{false};  // copies of a fence on several threads share this
};

}  // namespace detail

namespace {

// Enters the contexts of the events of one fence. Consecutive events of one device, the usual case,
// enter its context once.
class entered_context {
 public:
  status enter(const std::shared_ptr<device_core> &core) {
    if (inside_ != core) {
      guard_.reset();
      guard_.emplace(*core->drv, core->context.get());
      inside_ = core;
    }
    return guard_->entered();
  }

 private:
  std::shared_ptr<device_core> inside_;  // the context is left before it can be released
  std::optional<context_guard> guard_;
};

status refuse_if_capturing(const driver &drv, stream_ref s) {
  STILLMAP_ASSIGN_OR_RETURN(const auto capturing, drv.stream_capturing(s.get()));
  if (!capturing) return {};
  return make_error(errc::not_supported, "fence::after", "the stream is capturing a graph");
}

}  // namespace

result<fence> fence::after(const device &d, stream_ref s) {
  const std::shared_ptr<device_core> &core = d.shared()->core;
  const driver &drv = *core->drv;
  const context_guard guard(drv, core->context.get());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  STILLMAP_RETURN_IF_ERROR(refuse_if_capturing(drv, s));
  STILLMAP_ASSIGN_OR_RETURN(const auto event, core->events.take(drv));
  auto recorded = std::make_shared<detail::recorded_event>(core, event, true);
  STILLMAP_RETURN_IF_ERROR(drv.record_event(event, s.get()));
  // Another thread may have begun a capture between the query and the record.
  STILLMAP_RETURN_IF_ERROR(refuse_if_capturing(drv, s));
  fence out;
  out.events_.push_back(std::move(recorded));
  return out;
}

result<fence> fence::of(const device &d, event_ref e) {
  if (e.get() == nullptr) {
    return make_error(errc::invalid_argument, "fence::of", "there is no event");
  }
  fence out;
  out.events_.push_back(std::make_shared<detail::recorded_event>(d.shared()->core, e.get(), false));
  return out;
}

void fence::join(const fence &other) {
  for (const auto &e : other.events_) {
    if (e->passed.load(std::memory_order_acquire)) continue;
    if (std::find(events_.begin(), events_.end(), e) == events_.end()) events_.push_back(e);
  }
}

result<bool> fence::passed() {
  entered_context context;
  std::optional<error> failed;
  std::erase_if(events_, [&](const std::shared_ptr<detail::recorded_event> &e) {
    if (e->passed.load(std::memory_order_acquire)) return true;
    if (failed) return false;
    if (const status s = context.enter(e->core); !s) {
      failed = s.error();
      return false;
    }
    const auto done = e->core->drv->event_done(e->event);
    if (!done) failed = done.error();
    if (done && *done) e->passed.store(true, std::memory_order_release);
    return done && *done;
  });
  if (failed) return tl::unexpected<error>(*failed);
  return events_.empty();
}

status fence::wait() {
  entered_context context;
  while (!events_.empty()) {
    detail::recorded_event &e = *events_.back();
    if (!e.passed.load(std::memory_order_acquire)) {
      STILLMAP_RETURN_IF_ERROR(context.enter(e.core));
      STILLMAP_RETURN_IF_ERROR(e.core->drv->synchronize_event(e.event));
      e.passed.store(true, std::memory_order_release);
    }
    events_.pop_back();
  }
  return {};
}

status fence::make_wait(const device &d, stream_ref s) const {
  entered_context context;
  for (const auto &e : events_) {
    if (e->passed.load(std::memory_order_acquire)) continue;
    // Enters the context of the stream's device, which selects the default stream. A device that is
    // being closed only waits for its own fences.
    const auto &core = d.shared() != nullptr ? d.shared()->core : e->core;
    STILLMAP_RETURN_IF_ERROR(context.enter(core));
    STILLMAP_RETURN_IF_ERROR(e->core->drv->stream_wait(s.get(), e->event));
  }
  return {};
}

}  // namespace stillmap
