#include "hostcuda/src/execution/event.h"

#include "hostcuda/src/counters.h"
#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution/capture.h"
#include "hostcuda/src/execution/oracle.h"
#include "hostcuda/src/memory.h"

namespace hostcuda {

const std::shared_ptr<event> &find_event(CUevent handle) {
  auto &e = the_engine();
  const auto found = e.events.find(handle);
  if (found != e.events.end()) return found->second;
  static const auto *const none = new std::shared_ptr<event>;
  return *none;
}

std::uint64_t event::recorded_elsewhere() const {
  if (!shared) return 0;
  const std::uint64_t n = shared->last();
  return last == nullptr || last->number < n ? n : 0;
}

vector_clock precedes_other_processes(bool finished) {
  auto &e = the_engine();
  std::erase_if(e.shared_recordings, [&](const std::shared_ptr<moment> &m) {
    const bool seen = m->told || m->done();
    if (seen) e.before_others.join(m->clock);
    return seen;
  });
  vector_clock clock = e.before_others;
  if (!finished) {
    for (const auto &m : e.shared_recordings) clock.join(m->clock);
  }
  return clock;
}

namespace {

CUresult add_event(CUevent *out, unsigned flags, std::shared_ptr<shared_event> shared) {
  context *const ctx = current_context();
  auto &e = the_engine();
  engine_lock lock(e.mu);
  if (!e.contexts.contains(ctx)) return CUDA_ERROR_INVALID_CONTEXT;
  auto ev = std::make_shared<event>();
  ev->handle = new_handle<CUevent>(2);
  ev->ctx = ctx;
  ev->flags = flags;
  ev->shared = std::move(shared);
  *out = ev->handle;
  e.events[ev->handle] = std::move(ev);
  counters().live_events.fetch_add(1);
  return CUDA_SUCCESS;
}

CUresult create_event(CUevent *out, unsigned flags) {
  constexpr unsigned allowed =
      CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if (out == nullptr || (flags & ~allowed) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<shared_event> shared;
  if ((flags & CU_EVENT_INTERPROCESS) != 0) {
    shared = shared_event::create();
    if (!shared) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return add_event(out, flags, std::move(shared));
}

CUresult export_event(CUipcEventHandle *out, CUevent handle) {
  engine_lock lock(the_engine().mu);
  const auto ev = find_event(handle);
  if (!ev) return CUDA_ERROR_INVALID_HANDLE;
  if ((ev->flags & CU_EVENT_INTERPROCESS) == 0) return CUDA_ERROR_INVALID_VALUE;
  *out = ev->shared->handle();
  return CUDA_SUCCESS;
}

CUresult import_event(CUevent *out, const CUipcEventHandle &handle) {
  std::shared_ptr<shared_event> shared;
  if (const CUresult r = shared_event::open(handle, &shared); r != CUDA_SUCCESS) return r;
  return add_event(out, CU_EVENT_DISABLE_TIMING, std::move(shared));
}

CUresult destroy_event(CUevent handle) {
  auto &e = the_engine();
  engine_lock lock(e.mu);
  if (e.events.erase(handle) == 0) return CUDA_ERROR_INVALID_HANDLE;
  counters().live_events.fetch_sub(1);
  return CUDA_SUCCESS;
}

// The moment of the next recording: that of the last one, if it is done and only the event refers to it,
// because a program may record an event for each block that it frees.
std::shared_ptr<moment> next_moment(const event &ev) {
  const bool unused = !ev.shared && ev.last && ev.last.use_count() == 1 && ev.last->done();
  return unused ? ev.last : std::make_shared<moment>();
}

CUresult record_event(CUevent handle, CUstream stream_handle, unsigned flags) {
  if ((flags & ~unsigned{CU_EVENT_RECORD_EXTERNAL}) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (this_threads_work() != nullptr) return CUDA_ERROR_NOT_PERMITTED;
  stream_call call(stream_handle);
  if (!call.s) return call.error();
  const auto &ev = find_event(handle);
  if (!ev) return CUDA_ERROR_INVALID_HANDLE;
  auto &s = call.s;
  if (ev->ctx != s->ctx) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult r = capture_gate(*s, false); r != CUDA_SUCCESS) return r;
  const bool external = (flags & CU_EVENT_RECORD_EXTERNAL) != 0;
  if (external) return s->cap ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
  if (s->cap) {
    ev->cap = s->cap;
    ev->cap_tail = s->tail;
    ev->last.reset();
    return CUDA_SUCCESS;
  }
  auto at = next_moment(*ev);
  if (ev->shared) at->number = ev->shared->record();
  auto after = [at, shared = ev->shared](CUresult) {
    at->when = std::chrono::steady_clock::now();
    if (!shared) return;
    at->told = true;
    shared->complete(at->number);
  };
  const auto tick = post_mark(s, "cuEventRecord", nullptr, std::move(after));
  at->line = s->line;
  at->tick = tick;
  at->clock = s->view;
  at->clock.join(s->line, tick);
  if (ev->shared) {
    (void)precedes_other_processes(true);  // forgets the recordings that are done
    the_engine().shared_recordings.push_back(at);
  }
  ev->last = std::move(at);
  ev->cap.reset();
  ev->cap_tail.clear();
  announce(s);
  return CUDA_SUCCESS;
}

// A query of an event that was last recorded in a capture invalidates the capture.
CUresult captured(event &ev) {
  if (!ev.cap) return CUDA_SUCCESS;
  ev.cap->invalidated = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

// The last recording is number `n`, of another process.
CUresult query_elsewhere(engine_lock &lock, const event &ev, std::uint64_t n) {
  if (!ev.shared->done(n)) nudge(lock);
  if (const CUresult r = ev.ctx->sticky.load(); r != CUDA_SUCCESS) return r;
  if (!ev.shared->done(n)) return CUDA_ERROR_NOT_READY;
  oracle_learn(precedes_other_processes(true));
  return CUDA_SUCCESS;
}

CUresult synchronize_elsewhere(engine_lock &lock, const event &ev, std::uint64_t n) {
  // The other process may wait for work here, which a seeded schedule runs in a query.
  CUresult r = query_elsewhere(lock, ev, n);
  while (r == CUDA_ERROR_NOT_READY) {
    the_engine().changed.wait_for(lock, std::chrono::microseconds(50));
    r = query_elsewhere(lock, ev, n);
  }
  lock.unlock();
  if (r == CUDA_SUCCESS) memory_synchronised();
  return r;
}

CUresult query_event(CUevent handle) {
  if (this_threads_work() != nullptr) return CUDA_ERROR_NOT_PERMITTED;
  engine_lock lock(the_engine().mu);
  const auto ev = find_event(handle);
  if (!ev) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult r = captured(*ev); r != CUDA_SUCCESS) return r;
  // Observed on GPUs: a query of any event invalidates a global capture of another thread
  // (https://github.com/pytorch/pytorch/pull/104487), unless the querying thread is in another
  // mode (https://github.com/pytorch/pytorch/pull/148594).
  if (capture_forbids_unsafe_call_locked()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (const auto n = ev->recorded_elsewhere(); n != 0) return query_elsewhere(lock, *ev, n);
  const auto at = ev->last;
  if (!at) return CUDA_SUCCESS;
  if (!at->done()) nudge(lock);
  if (const CUresult r = ev->ctx->sticky.load(); r != CUDA_SUCCESS) return r;
  if (!at->done()) return CUDA_ERROR_NOT_READY;
  oracle_learn(at->clock);
  return CUDA_SUCCESS;
}

CUresult synchronize_event(CUevent handle) {
  if (this_threads_work() != nullptr) return CUDA_ERROR_NOT_PERMITTED;
  engine_lock lock(the_engine().mu);
  const auto ev = find_event(handle);
  if (!ev) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult r = captured(*ev); r != CUDA_SUCCESS) return r;
  if (const auto n = ev->recorded_elsewhere(); n != 0) return synchronize_elsewhere(lock, *ev, n);
  const auto at = ev->last;
  if (!at) return CUDA_SUCCESS;
  wait_for(lock, at->line, at->tick);
  oracle_learn(at->clock);
  const CUresult r = ev->ctx->sticky.load();
  lock.unlock();
  if (r == CUDA_SUCCESS) memory_synchronised();
  return r;
}

CUresult elapsed_time(float *out, CUevent start, CUevent end) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  engine_lock lock(the_engine().mu);
  const auto a = find_event(start);
  const auto b = find_event(end);
  if (!a || !b || !a->last || !b->last || a->ctx != b->ctx ||
      ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING) != 0) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!a->last->done() || !b->last->done()) nudge(lock);
  if (!a->last->done() || !b->last->done()) return CUDA_ERROR_NOT_READY;
  *out = std::chrono::duration<float, std::milli>(b->last->when - a->last->when).count();
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuEventCreate, 2000, needs_context, 0, (CUevent * out, unsigned flags),
               { return create_event(out, flags); })

HOSTCUDA_ENTRY(cuEventDestroy_v2, 4000, ignores_sticky, 0, (CUevent event),
               { return destroy_event(event); })

HOSTCUDA_STREAM_ENTRY(cuEventRecord, 2000, plain, 0, stream, (CUevent event, CUstream stream),
                      (event, stream), { return record_event(event, stream, 0); })

HOSTCUDA_STREAM_ENTRY(cuEventRecordWithFlags, 11010, plain, 0, stream,
                      (CUevent event, CUstream stream, unsigned flags), (event, stream, flags),
                      { return record_event(event, stream, flags); })

HOSTCUDA_ENTRY(cuEventQuery, 2000, plain, 0, (CUevent event), { return query_event(event); })

HOSTCUDA_ENTRY(cuEventSynchronize, 2000, plain, 0, (CUevent event),
               { return synchronize_event(event); })

HOSTCUDA_ENTRY_AND_V2(cuEventElapsedTime, 2000, 12080, plain, 0,
                      (float *out, CUevent start, CUevent end), (out, start, end),
                      { return elapsed_time(out, start, end); })

HOSTCUDA_ENTRY(cuIpcGetEventHandle, 4010, plain, 0, (CUipcEventHandle * out, CUevent event),
               { return out == nullptr ? CUDA_ERROR_INVALID_VALUE : export_event(out, event); })

HOSTCUDA_ENTRY(cuIpcOpenEventHandle, 4010, needs_context, 0,
               (CUevent * out, CUipcEventHandle handle),
               { return out == nullptr ? CUDA_ERROR_INVALID_VALUE : import_event(out, handle); })
