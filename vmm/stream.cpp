#include "stillmap/vmm/stream.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/internal/device_state.h"

namespace stillmap {

// ---- stream ----

struct stream::state {
  device of;  // keeps the context alive
};

result<stream> stream::create(const device &d, bool non_blocking) {
  return with_host_memory("stream::create", [&]() -> result<stream> {
    stream out;
    out.state_ = std::make_shared<state>(state{d});
    const context_guard guard(d.driver(), d.context());
    STILLMAP_RETURN_IF_ERROR(guard.entered());
    STILLMAP_ASSIGN_OR_RETURN(out.handle_, d.driver().create_stream(non_blocking));
    return out;
  });
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
  const operation_scope scope("stream::synchronize");
  if (handle_ == nullptr) {
    return make_error(errc::invalid_argument, "the stream was moved from");
  }
  const context_guard guard(state_->of.driver(), state_->of.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  return state_->of.driver().synchronize_stream(handle_);
}

result<bool> stream::idle() const {
  const operation_scope scope("stream::idle");
  if (handle_ == nullptr) {
    return make_error(errc::invalid_argument, "the stream was moved from");
  }
  const context_guard guard(state_->of.driver(), state_->of.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  return state_->of.driver().stream_idle(handle_);
}

// ---- fence ----

namespace detail {

struct recorded_event {
  recorded_event(std::shared_ptr<device_core> c, event_handle e) : core(std::move(c)), event(e) {}
  recorded_event(const recorded_event &) = delete;
  ~recorded_event() {
    if (from_pool) core->events.give_back(event);
  }

  std::shared_ptr<device_core> core;
  event_handle event;
  bool from_pool = false;           // otherwise the program owns it
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
  return make_error(errc::not_supported, "the stream is capturing a graph");
}

}  // namespace

result<fence> fence::after(const device &d, stream_ref s) {
  return record(d, s, true);
}

// An event that is recorded during a capture adds nothing to the graph. But one on the legacy stream
// (a null handle, or CU_STREAM_LEGACY) would invalidate the captures of all blocking streams.
result<fence> fence::after_for_retry(const device &d, stream_ref s) {
  const bool legacy = reinterpret_cast<std::uintptr_t>(s.get()) <= 1;
  return record(d, s, legacy);
}

result<fence> fence::record(const device &d, stream_ref s, bool refuse_first) {
  return with_host_memory("fence::after", [&]() -> result<fence> {
    const std::shared_ptr<device_core> &core = d.shared()->core;
    const driver &drv = *core->drv;
    fence out;
    out.one_ = std::make_shared<detail::recorded_event>(core, nullptr);
    const context_guard guard(drv, core->context.get());
    STILLMAP_RETURN_IF_ERROR(guard.entered());
    if (refuse_first) STILLMAP_RETURN_IF_ERROR(refuse_if_capturing(drv, s));
    STILLMAP_ASSIGN_OR_RETURN(out.one_->event, core->events.take(drv));
    out.one_->from_pool = true;
    STILLMAP_RETURN_IF_ERROR(drv.record_event(out.one_->event, s.get()));
    // Another thread may have begun a capture between the query and the record.
    STILLMAP_RETURN_IF_ERROR(refuse_if_capturing(drv, s));
    return out;
  });
}

result<fence> fence::of(const device &d, event_ref e) {
  const operation_scope scope("fence::of");
  if (e.get() == nullptr) return make_error(errc::invalid_argument, "there is no event");
  return with_host_memory([&]() -> result<fence> {
    fence out;
    out.one_ = std::make_shared<detail::recorded_event>(d.shared()->core, e.get());
    return out;
  });
}

std::span<const fence::event_ptr> fence::events() const {
  if (several_) return *several_;
  return {&one_, one_ ? std::size_t{1} : std::size_t{0}};
}

void fence::clear() {
  one_.reset();
  several_.reset();
}

status fence::join(const fence &other) {
  if (trivially_passed()) {
    *this = other;
    return {};
  }
  const auto passed = [](const event_ptr &e) { return e->passed.load(std::memory_order_acquire); };
  const auto here = [&](const event_ptr &e) {
    return std::find(events().begin(), events().end(), e) != events().end();
  };
  const auto known = [&](const event_ptr &e) { return passed(e) || here(e); };
  if (std::all_of(other.events().begin(), other.events().end(), known)) return {};
  return with_host_memory("fence::join", [&]() -> status {
    std::vector<event_ptr> all;
    all.reserve(events().size() + other.events().size());
    std::copy_if(events().begin(), events().end(), std::back_inserter(all), std::not_fn(passed));
    std::copy_if(other.events().begin(), other.events().end(), std::back_inserter(all),
                 std::not_fn(known));
    several_ = std::make_shared<const std::vector<event_ptr>>(std::move(all));
    one_.reset();
    return {};
  });
}

result<bool> fence::passed() {
  entered_context context;
  bool all = true;
  for (const event_ptr &e : events()) {
    if (e->passed.load(std::memory_order_acquire)) continue;
    STILLMAP_RETURN_IF_ERROR(context.enter(e->core));
    STILLMAP_ASSIGN_OR_RETURN(const bool done, e->core->drv->event_done(e->event));
    if (done) e->passed.store(true, std::memory_order_release);
    all = all && done;
  }
  if (all) clear();
  return all;
}

status fence::wait() {
  entered_context context;
  const auto all = events();
  for (auto at = all.rbegin(); at != all.rend(); ++at) {
    detail::recorded_event &e = **at;
    if (e.passed.load(std::memory_order_acquire)) continue;
    STILLMAP_RETURN_IF_ERROR(context.enter(e.core));
    STILLMAP_RETURN_IF_ERROR(e.core->drv->synchronize_event(e.event));
    e.passed.store(true, std::memory_order_release);
  }
  clear();
  return {};
}

status fence::make_wait(const device &d, stream_ref s) const {
  entered_context context;
  for (const event_ptr &e : events()) {
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
