// The streams of the arenas: whether they capture or are idle, fences behind their work, and what
// becomes of the arena of a stream that has ended. docs/allocator_streams.md
#include <algorithm>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "stillmap/allocators/engine/allocator_core.h"
#include "stillmap/allocators/engine/policy.h"
#include "stillmap/allocators/engine/room.h"
#include "stillmap/allocators/engine/thread_stream.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {
namespace {

// CUDA leaves it undefined what a call with a destroyed stream does. Its drivers answer with one of
// these (seen with both: github.com/cupy/cupy/pull/4537).
bool says_destroyed(const error &e) {
  return e.code == std::error_code(400, cuda_category()) ||  // CUDA_ERROR_INVALID_HANDLE
         e.code == std::error_code(709, cuda_category());    // CUDA_ERROR_CONTEXT_IS_DESTROYED
}

}  // namespace

// ---- arenas of streams ----

arena &allocator_core::arena_for(stream_ref s) {
  if (arena *const a = streams_.of(s)) return *a;
  streams_.expect();
  if (++streams_since_search_ > std::max(policy::streams_between_searches, arenas_.size() / 2)) {
    end_destroyed_streams();
  }
  for (const auto &a : arenas_) {
    if (adopt(*a, s)) return *a;
  }
  arena &made = make_arena(s);
  streams_.serve(s, &made);
  return made;
}

arena &allocator_core::make_arena(stream_ref s) {
  const auto made =
      std::make_shared<arena>(arenas_.size() + 1, s, page(), true, in_chunks(), shared_, &history);
  returns_.resize(arenas_.size() + 1);
  make_room(arenas_);
  {
    const lock_guard lock(arenas_mutex_);
    reported_arenas_.push_back(made);
  }
  arenas_.push_back(made);
  return *made;
}

// Lets the arena of an ended stream, with its memory, serve `s`.
bool allocator_core::adopt(arena &a, stream_ref s) {
  const arena::facts now = a.now();
  if (!now.ended || now.pinned) return false;
  fence &last_work = returns_of(a).last_work;
  if (const auto passed = last_work.passed(); !passed || !*passed) {
    if (capturing(s) || !last_work.make_wait(device_, thread_stream::handle_of(s))) return false;
  }
  last_work = {};
  {
    const lock_guard lock(a.lock);
    a.stream = s;
    a.pool = 0;
    a.ended = false;
  }
  streams_.serve(s, &a);
  return true;
}

// No work is queued on the arena's stream any more. `last_work` is behind all of it.
void allocator_core::end(arena &a, fence last_work) noexcept {
  const stream_ref s = a.now().stream;
  if (streams_.of(s) == &a) streams_.serve(s, nullptr);
  returns_of(a).last_work = std::move(last_work);
  const lock_guard lock(a.lock);
  a.ended = true;
}

status allocator_core::forget_stream(stream_ref named) {
  constexpr const char *op = "caching_allocator::forget_stream";
  if (watch_.in_child()) return forked_error(op);
  const stream_ref s = thread_stream::key_of(named);
  const lock_guard growing(growth_mutex_);
  if (const private_pools::pool *const pool = pools_.serving(s)) {
    return make_error(errc::busy, op, "the stream allocates to a private pool", pool->id);
  }
  const auto knows_stream = [&](const std::shared_ptr<arena> &a) STILLMAP_REQUIRES(growth_mutex_) {
    if (returns_of(*a).pending.has_uses_on(s)) return true;
    const lock_guard lock(a->lock);
    return a->serves(s) || a->has_uses_on(s);
  };
  bool known = std::any_of(arenas_.begin(), arenas_.end(), knows_stream);
  pools_.each_use([&](const stream_use &u) { known = known || u.is_on(s); });
  if (!known) return {};
  const relaxed_capture_mode relaxed(device_.driver());
  STILLMAP_RETURN_IF_ERROR(relaxed.entered());
  const auto last_work = fence::after(device_, named);
  if (!last_work && says_destroyed(last_work.error())) {
    end_destroyed_streams();
    return {};
  }
  if (!last_work) return tl::unexpected<error>(last_work.error());
  std::vector<std::pair<arena *, fence>> ending;
  for (const auto &a : arenas_) {
    if (a->now().serves(s)) ending.emplace_back(a.get(), *last_work);
  }
  for (auto &[a, after] : ending) end(*a, std::move(after));
  const std::uint64_t number = ++recorded_uses_;
  for (const auto &a : arenas_) {
    returns_of(*a).pending.forget(s, number, *last_work);
    const lock_guard lock(a->lock);
    a->forget_uses(s, number, *last_work);
  }
  pools_.each_use([&](stream_use &u) {
    if (u.is_on(s)) u.forget(number, *last_work);
  });
  return {};
}

// Ends the arenas of streams that were destroyed without forget_stream. The driver still completes
// what was queued on them, and no event can be recorded there any more: the host waits for the
// device, once for all of them. While a known stream captures, nothing is done.
void allocator_core::end_destroyed_streams() {
  streams_since_search_ = 0;
  std::vector<arena *> destroyed;
  bool quiet = !capturing(stream_ref::legacy());
  {
    const context_guard guard(device_.driver(), device_.context());
    if (!guard.entered()) return;
    for (const auto &a : arenas_) {
      const arena::facts now = a->now();
      if (now.ended) continue;
      const stream_ref handle = thread_stream::handle_of(now.stream);
      const auto answer = device_.driver().stream_capturing(handle.get());
      if (thread_stream::thread_ended(now.stream) || (!answer && says_destroyed(answer.error()))) {
        destroyed.push_back(a.get());
      } else {
        quiet = quiet && answer && !*answer;
      }
    }
  }
  if (destroyed.empty() || !quiet) return;
  ++host_waits_;
  if (!wait_for_device()) return;
  for (arena *const a : destroyed) end(*a, {});
}

// ---- what a stream does ----

// Fails where no event can be recorded. Throws std::bad_alloc without host memory.
result<fence> allocator_core::fence_after(const arena &a) {
  const arena::facts now = a.now();
  if (now.ended) return returns_of(a).last_work;
  auto after = fence::after(device_, thread_stream::handle_of(now.stream));
  if (!after && after.error().code == std::errc::not_enough_memory) throw std::bad_alloc();
  return after;
}

// Whether the stream is capturing, or cannot be queried because another stream is.
bool allocator_core::capturing(stream_ref s) const {
  const context_guard guard(device_.driver(), device_.context());
  if (!guard.entered()) return false;
  const auto answer = device_.driver().stream_capturing(thread_stream::handle_of(s).get());
  return !answer || *answer;
}
bool allocator_core::capturing(const arena &a) const {
  const arena::facts now = a.now();
  return !now.ended && capturing(now.stream);
}

// Whether the arena's stream is idle, so that its pages move without a wait.
bool allocator_core::is_idle(arena &a) {
  const arena::facts now = a.now();
  if (now.ended) {
    const auto passed = returns_of(a).last_work.passed();
    return passed && *passed;
  }
  if (thread_stream::of_another_thread(now.stream)) return false;
  // Not by a query of the stream, which would invalidate a capture that another thread begins there
  // meanwhile: an event tells whether it became part of one.
  auto queued = fence::after_for_retry(device_, thread_stream::handle_of(now.stream));
  if (!queued) return false;
  const auto passed = queued->passed();
  return passed && *passed;
}

// ---- uses of blocks on other streams ----

// Fails where no event was recorded for that use, and none can be recorded now: while the stream
// captures, or without host memory.
status allocator_core::record(stream_use &u) noexcept {
  if (u.recorded) return {};
  return with_host_memory("caching_allocator::free", [&]() -> status {
    u.recorded_from = recorded_uses_;
    STILLMAP_ASSIGN_OR_RETURN(u.idle,
                              fence::after_for_retry(device_, thread_stream::handle_of(u.stream)));
    u.recorded_by = ++recorded_uses_;
    u.recorded = true;
    return {};
  });
}

// Events that cannot be recorded now are recorded when memory is needed.
void allocator_core::record_uses(pending_block &b) noexcept {
  if (b.uses.size() == 1) return static_cast<void>(record(b.uses.front()));
  const context_scope inside(device_.driver(), device_.context());
  for (stream_use &u : b.uses) static_cast<void>(record(u));
}

// With `wait`, the host waits until it has passed.
result<bool> allocator_core::has_passed(fence &idle, bool wait) {
  const auto passed = idle.passed();
  if (!passed || *passed || !wait) return passed;
  ++host_waits_;
  STILLMAP_RETURN_IF_ERROR(idle.wait());
  return true;
}

// A fence that cannot be queried became part of a graph: a capture began meanwhile. Where the stream
// was destroyed before an event could be recorded, the host waits for the device.
bool allocator_core::has_passed(stream_use &u, waiting_for wait) noexcept {
  if (progress_.covers(u)) return true;
  if (const status s = record(u); !s) {
    if (wait == waiting_for::nothing || !says_destroyed(s.error()) ||
        !check_no_capture("caching_allocator"))
      return false;
    ++host_waits_;
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
