#include "stillmap/allocators/engine/stream_tracker.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "stillmap/allocators/engine/policy.h"
#include "stillmap/allocators/engine/thread_stream.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

namespace stillmap {

// CUDA leaves it undefined what a call with a destroyed stream does. Its drivers answer with one of
// these (seen with both: github.com/cupy/cupy/pull/4537).
bool says_destroyed(const error &e) {
  constexpr int invalid_handle = 400, context_is_destroyed = 709;  // CUresult
  return e.code == std::error_code(invalid_handle, cuda_category()) ||
         e.code == std::error_code(context_is_destroyed, cuda_category());
}

// ---- arenas of streams ----

arena &stream_tracker::arena_for(stream_ref s) {
  if (arena *const a = heap_.streams.of(s)) return *a;
  heap_.streams.expect();
  if (++new_streams_ > std::max(policy::streams_between_searches, heap_.arenas.size() / 2)) {
    end_destroyed();
  }
  for (const auto &a : heap_.arenas) {
    if (adopt(*a, s)) return *a;
  }
  arena &made = heap_.make_arena(s);
  heap_.streams.serve(s, &made);
  return made;
}

// Lets the arena of an ended stream, with its memory, serve `s`.
bool stream_tracker::adopt(arena &a, stream_ref s) {
  const arena::service now = a.service_now();
  if (!now.ended || now.pinned) return false;
  fence &last_work = heap_.returns_of(a).last_work;
  const relaxed_capture_mode relaxed(heap_.device.driver());
  if (!relaxed.entered()) return false;
  if (const auto passed = last_work.passed(); !passed || !*passed) {
    if (capturing(s) || !last_work.make_wait(heap_.device, thread_stream::handle_of(s)))
      return false;
  }
  last_work = {};
  a.set_service({.stream = s});
  heap_.streams.serve(s, &a);
  return true;
}

// No work is queued on the arena's stream any more. `last_work` is behind all of it.
void stream_tracker::end(arena &a, fence last_work) noexcept {
  arena::service now = a.service_now();
  if (heap_.streams.of(now.stream) == &a) heap_.streams.serve(now.stream, nullptr);
  heap_.returns_of(a).last_work = std::move(last_work);
  now.ended = true;
  a.set_service(now);
}

bool stream_tracker::knows(stream_ref s) {
  return std::any_of(heap_.arenas.begin(), heap_.arenas.end(),
                     [&](const std::shared_ptr<arena> &a) STILLMAP_REQUIRES(growth) {
                       if (heap_.returns_of(*a).pending.has_uses_on(s)) return true;
                       const lock_guard lock(a->lock());
                       return a->service_locked().serves(s) || a->blocks().uses.has_uses_on(s);
                     });
}

std::uint64_t stream_tracker::forget(stream_ref s, const fence &last_work) {
  std::vector<std::pair<arena *, fence>> ending;
  for (const auto &a : heap_.arenas) {
    if (a->service_now().serves(s)) ending.emplace_back(a.get(), last_work);
  }
  for (auto &[a, after] : ending) end(*a, std::move(after));
  const std::uint64_t number = next_use_number();
  for (const auto &a : heap_.arenas) {
    heap_.returns_of(*a).pending.forget(s, number, last_work);
    const lock_guard lock(a->lock());
    a->blocks().uses.forget(s, number, last_work);
  }
  return number;
}

// The driver still completes what was queued on them, and no event can be recorded there any more: the host waits
// for the device, once for all of them.
void stream_tracker::end_destroyed() {
  new_streams_ = 0;
  std::vector<arena *> destroyed;
  bool quiet = !capturing(stream_ref::legacy());
  {
    const context_guard guard(heap_.device.driver(), heap_.device.context());
    if (!guard.entered()) return;
    for (const auto &a : heap_.arenas) {
      const arena::service now = a->service_now();
      if (now.ended) continue;
      const stream_ref handle = thread_stream::handle_of(now.stream);
      const auto answer = heap_.device.driver().stream_capturing(handle.get());
      if (thread_stream::thread_ended(now.stream) || (!answer && says_destroyed(answer.error()))) {
        destroyed.push_back(a.get());
      } else {
        quiet = quiet && answer && !*answer;
      }
    }
  }
  if (destroyed.empty() || !quiet) return;
  ++heap_.counters.host_waits;
  if (!wait_for_device()) return;
  for (arena *const a : destroyed) end(*a, {});
}

// ---- what a stream does ----

result<fence> stream_tracker::fence_after(const arena &a) {
  const arena::service now = a.service_now();
  if (now.ended) return heap_.returns_of(a).last_work;
  auto after = fence::after(heap_.device, thread_stream::handle_of(now.stream));
  if (!after && after.error().code == std::errc::not_enough_memory) throw std::bad_alloc();
  return after;
}

bool stream_tracker::capturing(stream_ref s) const {
  const context_guard guard(heap_.device.driver(), heap_.device.context());
  if (!guard.entered()) return false;
  const auto answer = heap_.device.driver().stream_capturing(thread_stream::handle_of(s).get());
  return !answer || *answer;
}
bool stream_tracker::capturing(const arena &a) const {
  const arena::service now = a.service_now();
  return !now.ended && capturing(now.stream);
}

bool stream_tracker::is_idle(arena &a) {
  const arena::service now = a.service_now();
  if (now.ended) {
    const auto passed = heap_.returns_of(a).last_work.passed();
    return passed && *passed;
  }
  if (thread_stream::of_another_thread(now.stream)) return false;
  // Not by a query of the stream, which would invalidate a capture that another thread begins there
  // meanwhile: an event tells whether it became part of one.
  auto queued = fence::after_for_retry(heap_.device, thread_stream::handle_of(now.stream));
  if (!queued) return false;
  const auto passed = queued->passed();
  return passed && *passed;
}

// The query of the default stream also covers streams of other owners, unless they are non-blocking.
status stream_tracker::check_no_capture() const {
  const context_guard guard(heap_.device.driver(), heap_.device.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  const auto ask = [&](stream_ref s) -> status {
    const auto answer = heap_.device.driver().stream_capturing(s.get());
    if (!answer && !answer.error().is(errc::not_supported)) {
      return tl::unexpected<error>(answer.error());
    }
    if (answer && !*answer) return {};
    return make_error(errc::busy, "memory cannot be released while a stream captures a graph");
  };
  if (status s = ask({}); !s) return s;
  for (const auto &a : heap_.arenas) {
    const arena::service now = a->service_now();
    if (!now.ended) STILLMAP_RETURN_IF_ERROR(ask(thread_stream::handle_of(now.stream)));
  }
  return {};
}

status stream_tracker::wait_for_device() const {
  const context_guard guard(heap_.device.driver(), heap_.device.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  return heap_.device.driver().synchronize_context();
}

// ---- uses of blocks on other streams ----

status stream_tracker::record(stream_use &u) noexcept {
  if (u.recorded) return {};
  return with_host_memory([&]() -> status {
    u.recorded_from = recorded_uses_;
    STILLMAP_ASSIGN_OR_RETURN(
        u.idle, fence::after_for_retry(heap_.device, thread_stream::handle_of(u.stream)));
    u.recorded_by = ++recorded_uses_;
    u.recorded = true;
    return {};
  });
}

void stream_tracker::record_uses(pending_block &b) noexcept {
  if (b.uses.size() == 1) return static_cast<void>(record(b.uses.front()));
  const context_scope inside(heap_.device.driver(), heap_.device.context());
  for (stream_use &u : b.uses) static_cast<void>(record(u));
}

result<bool> stream_tracker::has_passed(fence &idle, bool wait) {
  const auto passed = idle.passed();
  if (!passed || *passed || !wait) return passed;
  ++heap_.counters.host_waits;
  STILLMAP_RETURN_IF_ERROR(idle.wait());
  return true;
}

// A fence that cannot be queried became part of a graph: a capture began meanwhile. Where the stream
// was destroyed before an event could be recorded, the host waits for the device.
bool stream_tracker::has_passed(stream_use &u, waiting_for wait) noexcept {
  if (progress_.covers(u)) return true;
  if (const status s = record(u); !s) {
    if (wait == waiting_for::nothing || !says_destroyed(s.error()) || !check_no_capture())
      return false;
    ++heap_.counters.host_waits;
    u.recorded = wait_for_device().has_value();
    u.recorded_by = ++recorded_uses_;
    return u.recorded;
  }
  const auto past = has_passed(u.idle, wait == waiting_for::everything);
  u.recorded = past.has_value() || u.forgotten != 0;
  if (past && *past) progress_.note(u);
  return past && *past;
}

}  // namespace stillmap
