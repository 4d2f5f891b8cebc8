#include "stillmap/allocators/internal/history_ring.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/context.h"

#if __has_include(<execinfo.h>)
#include <execinfo.h>
#define STILLMAP_HAS_BACKTRACE 1
#endif

namespace stillmap {
namespace {

constexpr std::size_t most_events = std::size_t{1} << 26;

template <class Clock>
std::uint64_t ns_of() {
  const auto since = Clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

// No frame of its own, in any build.
[[gnu::always_inline]] inline unsigned walk_stack(void **into, unsigned most) {
#ifdef STILLMAP_HAS_BACKTRACE
  return static_cast<unsigned>(std::max(0, backtrace(into, static_cast<int>(most))));
#else
  static_cast<void>(into);
  static_cast<void>(most);
  return 0;
#endif
}

}  // namespace

status history_ring::start(const history_options &o) {
  if (o.events == 0 || o.events > most_events) {
    return make_error(errc::invalid_argument, "the number of events is 0 or over the limit",
                      o.events, most_events, error_unit::items);
  }
  if (o.stack_depth > call_stack::most) {
    return make_error(errc::invalid_argument, "the stack depth is over the limit", o.stack_depth,
                      call_stack::most, error_unit::items);
  }
  const std::size_t depth = o.stack_depth;
  ring fresh;
  fresh.options = o;
  fresh.capacity = o.events;
  fresh.events.reset(new (std::nothrow) history_event[o.events]);
  if (depth != 0) fresh.frames.reset(new (std::nothrow) const void *[o.events * depth]);
  if (fresh.events == nullptr || (depth != 0 && fresh.frames == nullptr)) {
    return tl::unexpected<error>(
        error{std::make_error_code(std::errc::not_enough_memory), operation_scope::current(),
              "the host has no memory for the events",
              o.events * (sizeof(history_event) + depth * sizeof(void *)), 0, error_unit::bytes});
  }
  // The first stack walk loads the unwinder, which allocates.
  void *first[1];
  if (depth != 0) walk_stack(first, 1);
  fresh.epoch_ns = ns_of<std::chrono::system_clock>() - ns_of<std::chrono::steady_clock>();
  const lock_guard lock(lock_);
  std::swap(ring_, fresh);  // the earlier one is freed after the lock is released
  depth_.store(o.stack_depth, std::memory_order_relaxed);
  recording_ = true;
  update();
  return {};
}

void history_ring::notify_requests() {
  const lock_guard lock(lock_);
  requests_ = true;
  update();
}

void history_ring::hold_requests(bool hold) {
  const lock_guard lock(lock_);
  held_ = hold;
  update();
}

bool history_ring::recording() const {
  const lock_guard lock(lock_);
  return recording_;
}

void history_ring::stop() {
  const lock_guard lock(lock_);
  recording_ = false;
  depth_.store(0, std::memory_order_relaxed);  // what is only observed or traced needs no stacks
  update();
}

void history_ring::forget() {
  stop();
  ring forgotten;  // freed after the lock is released
  const lock_guard lock(lock_);
  std::swap(ring_, forgotten);
}

call_stack history_ring::capture() const {
  call_stack out;
  const unsigned depth = depth_.load(std::memory_order_relaxed);
  if (depth == 0) return out;
  constexpr unsigned own = 2;
  void *found[call_stack::most + own];
  const unsigned n = walk_stack(found, depth + own);
  for (unsigned i = own; i < n; ++i) out.frames[out.depth++] = found[i];
  return out;
}

// Whether the observer wants more events.
bool history_ring::tell(const history_event &e) {
  const outside_scopes callback;
  return observer_->on_event(e);
}

void history_ring::push(history_event e, const call_stack *stack) {
  if (watched_.load(std::memory_order_relaxed) && !tell(e)) {
    const lock_guard lock(lock_);
    watched_ = false;
    update();
  }
  const lock_guard lock(lock_);
  if (!recording_) return;
  // Under the lock, so that times increase from event to event.
  e.time_ns = ring_.epoch_ns + ns_of<std::chrono::steady_clock>();
  const std::size_t at = ring_.recorded % ring_.capacity;
  e.first_frame = 0;
  e.frames = 0;
  if (stack != nullptr && ring_.options.stack_depth != 0) {
    e.frames = std::min(stack->depth, ring_.options.stack_depth);
    std::copy_n(stack->frames, e.frames, &ring_.frames[at * ring_.options.stack_depth]);
  }
  ring_.events[at] = e;
  ++ring_.recorded;
}

result<allocation_history> history_ring::copy() const {
  allocation_history out;
  // Allocates before taking the lock. A ring restarted meanwhile may have another depth.
  for (;;) {
    std::size_t events = 0, depth = 0;
    {
      const lock_guard lock(lock_);
      events =
          static_cast<std::size_t>(std::min<std::uint64_t>(ring_.recorded + 64, ring_.capacity));
      depth = ring_.options.stack_depth;
    }
    out.events.reserve(events);
    out.frames.reserve(events * depth);
    const lock_guard lock(lock_);
    const auto kept =
        static_cast<std::size_t>(std::min<std::uint64_t>(ring_.recorded, ring_.capacity));
    // Events recorded since then are left out: the newest that fit.
    if (ring_.options.stack_depth != depth) continue;
    const std::size_t take = std::min(kept, events);
    out.options = ring_.options;
    out.recorded = ring_.recorded;
    out.lost = ring_.recorded - take;
    for (std::uint64_t i = ring_.recorded - take; i < ring_.recorded; ++i) {
      const std::size_t at = i % ring_.capacity;
      history_event e = ring_.events[at];
      const void *const *const stack = depth != 0 ? &ring_.frames[at * depth] : nullptr;
      e.first_frame = out.frames.size();
      out.frames.insert(out.frames.end(), stack, stack + e.frames);
      out.events.push_back(e);
    }
    return out;
  }
}

std::size_t history_ring::host_bytes() const {
  const lock_guard lock(lock_);
  return ring_.capacity * (sizeof(history_event) + ring_.options.stack_depth * sizeof(void *));
}

}  // namespace stillmap
