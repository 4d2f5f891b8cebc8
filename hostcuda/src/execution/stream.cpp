// Stream functions (cuStream*), except capture.
#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "hostcuda/src/counters.h"
#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution/capture.h"
#include "hostcuda/src/execution/engine.h"
#include "hostcuda/src/execution/event.h"
#include "hostcuda/src/execution/node_params.h"
#include "hostcuda/src/memory.h"

using namespace hostcuda;

namespace {

constexpr int least_priority = 0;
constexpr int greatest_priority = -5;

// Requires the engine's lock.
void destroy_stream(const std::shared_ptr<stream> &s) {
  auto &e = the_engine();
  if (s->cap) leave_capture(s);
  e.streams.erase(s->handle);
  if (current_settings().reuse_stream_handles) e.destroyed_handles.push_back(s->handle);
  counters().live_streams.fetch_sub(1);
  // Queued work still runs; the stream is removed afterwards. Ends a hold, because the handle is
  // dead.
  s->destroyed = true;
  s->held = false;
  if (s->queue.empty()) {
    s->wake.notify_all();
    retire_stream(s);
  } else {
    rouse(s);
  }
}

// Requires the engine's lock.
CUstream take_stream_handle() {
  auto &destroyed = the_engine().destroyed_handles;
  if (destroyed.empty()) return new_handle<CUstream>(1);
  const CUstream again = destroyed.back();
  destroyed.pop_back();
  return again;
}

CUresult destroy_stream(CUstream handle) {
  auto &e = the_engine();
  engine_lock lock(e.mu);
  const auto found = e.streams.find(handle);
  if (found == e.streams.end())
    return e.orphans.contains(handle) ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_HANDLE;
  destroy_stream(std::shared_ptr<stream>(found->second));
  return CUDA_SUCCESS;
}

CUresult stream_wait_event(CUstream handle, CUevent event_handle, unsigned flags) {
  if ((flags & ~unsigned{CU_EVENT_WAIT_EXTERNAL}) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (this_threads_work() != nullptr) return CUDA_ERROR_NOT_PERMITTED;
  stream_call call(handle);
  if (!call.s) return call.error();
  const auto &ev = find_event(event_handle);
  if (!ev) return CUDA_ERROR_INVALID_HANDLE;
  auto &s = call.s;
  if (const CUresult r = capture_gate(*s, false); r != CUDA_SUCCESS) return r;
  if (ev->cap) return join_capture(s, ev->cap, ev->cap_tail);
  const std::uint64_t elsewhere = ev->recorded_elsewhere();
  if (s->cap) {
    if (!ev->last && elsewhere == 0) return CUDA_SUCCESS;
    s->cap->invalidated = true;  // a dependency on work outside the graph
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (elsewhere != 0) {
    // Only the oracle takes them for done: to wait for them here might never end.
    s->view.join(precedes_other_processes(false));
    operation op{"cuStreamWaitEvent", {}, {}};
    op.ready = [shared = ev->shared, elsewhere] { return shared->done(elsewhere); };
    post(call.lock, s, std::move(op), nullptr, nullptr);
    announce(s);
    return CUDA_SUCCESS;
  }
  if (!ev->last) return CUDA_SUCCESS;  // not recorded yet: no effect
  post_mark(s, "cuStreamWaitEvent", &ev->last->clock, [](CUresult) {});
  announce(s);
  return CUDA_SUCCESS;
}

CUresult stream_add_callback(CUstream handle, CUstreamCallback callback, void *user,
                             unsigned flags) {
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (this_threads_work() != nullptr) return CUDA_ERROR_NOT_PERMITTED;
  stream_call call(handle);
  if (!call.s) return call.error();
  auto &s = call.s;
  if (const CUresult r = capture_gate(*s, true); r != CUDA_SUCCESS) return r;
  operation op{"cuStreamAddCallback", {}, {}};
  op.after = [=](CUresult status) { callback(handle, status, user); };
  post(call.lock, s, std::move(op), nullptr, nullptr);
  announce(s);
  return CUDA_SUCCESS;
}

CUresult launch_host_function(CUstream stream, CUhostFn fn, void *user) {
  if (fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  operation op{"cuLaunchHostFunc", {}, [=] {
                 fn(user);
                 return CUDA_SUCCESS;
               }};
  op.type = CU_GRAPH_NODE_TYPE_HOST;
  op.describe = [=] { return share_params(CUDA_HOST_NODE_PARAMS{fn, user}); };
  return enqueue(stream, std::move(op));
}

template <class Word>
bool holds(const volatile Word *word, Word value, unsigned how) {
  const Word now = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  switch (how) {
    case CU_STREAM_WAIT_VALUE_EQ:
      return now == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (now & value) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
      return static_cast<Word>(~(now | value)) != 0;
    default:
      return static_cast<std::make_signed_t<Word>>(now - value) >= 0;
  }
}

// Writes the property that `read` returns for a stream.
template <class Value, class Read>
CUresult get_property(CUstream handle, Value *out, Read read) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  stream_call call(handle);
  if (!call.s) return call.error();
  *out = read(*call.s);
  return CUDA_SUCCESS;
}

CUresult device_of(CUstream handle, CUdevice *device) {
  return get_property(handle, device, [](const auto &s) { return s.ctx->device; });
}

template <class Word>
CUresult wait_value(const char *what, CUstream handle, CUdeviceptr at, Word value, unsigned flags) {
  const unsigned how = flags & ~unsigned{CU_STREAM_WAIT_VALUE_FLUSH};
  if (how > CU_STREAM_WAIT_VALUE_NOR || at % sizeof(Word) != 0) return CUDA_ERROR_INVALID_VALUE;
  CUdevice device = 0;
  if (const CUresult r = device_of(handle, &device); r != CUDA_SUCCESS) return r;
  void *const host = resolve(device, at, sizeof(Word), false);
  if (host == nullptr) return CUDA_ERROR_INVALID_VALUE;
  operation op{what, {{at, sizeof(Word), false}}, {}};
  op.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  if (!unbacked()) {
    op.ready = [=] { return holds(static_cast<const volatile Word *>(host), value, how); };
  }
  return enqueue(handle, std::move(op));
}

template <class Word>
CUresult write_value(const char *what, CUstream handle, CUdeviceptr at, Word value,
                     unsigned flags) {
  if ((flags & ~unsigned{CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER}) != 0 || at % sizeof(Word) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUdevice device = 0;
  if (const CUresult r = device_of(handle, &device); r != CUDA_SUCCESS) return r;
  if (resolve(device, at, sizeof(Word), true) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  operation op{what, {{at, sizeof(Word), true}}, [=] {
                 void *const host = resolve(device, at, sizeof(Word), true);
                 if (host == nullptr) return CUDA_ERROR_ILLEGAL_ADDRESS;
                 if (!unbacked()) {
                   __atomic_store_n(static_cast<Word *>(host), value, __ATOMIC_RELEASE);
                 }
                 return CUDA_SUCCESS;
               }};
  op.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  return enqueue(handle, std::move(op));
}

}  // namespace

namespace hostcuda {

CUresult create_stream(const current_entry &where, CUstream *out, unsigned flags, int priority) {
  if (out == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto &e = the_engine();
  engine_lock lock(e.mu);
  const auto exec = e.contexts.find(where.ctx);
  if (exec == e.contexts.end()) return CUDA_ERROR_INVALID_CONTEXT;
  const auto handle = take_stream_handle();
  const auto s = make_stream(*exec->second, handle, (flags & CU_STREAM_NON_BLOCKING) == 0);
  s->green = where.green;
  // Higher priorities are lower numbers.
  s->priority = std::clamp(priority, greatest_priority, least_priority);
  e.streams[handle] = s;
  counters().live_streams.fetch_add(1);
  *out = handle;
  return CUDA_SUCCESS;
}

CUresult context_of(CUstream handle, current_entry *out) {
  stream_call call(handle);
  if (!call.s) return call.error();
  const bool created = the_engine().streams.contains(handle);
  *out = created ? current_entry{call.s->ctx, call.s->green} : current_entry_of_thread();
  return CUDA_SUCCESS;
}

void end_streams_of(const green_context *green) {
  auto &e = the_engine();
  engine_lock lock(e.mu);
  std::vector<std::shared_ptr<stream>> mine;
  for (const auto &[handle, s] : e.streams)
    if (s->green == green) mine.push_back(s);
  for (const auto &s : mine) {
    e.orphans.insert(s->handle);
    destroy_stream(s);
  }
}

}  // namespace hostcuda

HOSTCUDA_ENTRY(cuStreamCreate, 2000, needs_context, 0, (CUstream * out, unsigned flags),
               { return create_stream(current_entry_of_thread(), out, flags, 0); })

HOSTCUDA_ENTRY(cuStreamCreateWithPriority, 5050, needs_context, 0,
               (CUstream * out, unsigned flags, int priority),
               { return create_stream(current_entry_of_thread(), out, flags, priority); })

HOSTCUDA_ENTRY(cuStreamDestroy_v2, 4000, ignores_sticky, 0, (CUstream stream),
               { return destroy_stream(stream); })

HOSTCUDA_STREAM_ENTRY(cuStreamSynchronize, 2000, plain, 0, stream, (CUstream stream), (stream), {
  if (this_threads_work() != nullptr) return CUDA_ERROR_NOT_PERMITTED;
  {
    stream_call call(stream);
    if (!call.s) return call.error();
    if (const CUresult r = synchronize_stream(call.lock, call.s); r != CUDA_SUCCESS) return r;
  }
  memory_synchronised();
  return CUDA_SUCCESS;
})

HOSTCUDA_STREAM_ENTRY(cuStreamQuery, 2000, plain, 0, stream, (CUstream stream), (stream), {
  if (this_threads_work() != nullptr) return CUDA_ERROR_NOT_PERMITTED;
  stream_call call(stream);
  if (!call.s) return call.error();
  return query_stream(call.lock, call.s);
})

HOSTCUDA_STREAM_ENTRY(cuStreamWaitEvent, 3020, plain, 0, stream,
                      (CUstream stream, CUevent event, unsigned flags), (stream, event, flags),
                      { return stream_wait_event(stream, event, flags); })

HOSTCUDA_STREAM_ENTRY(cuStreamAddCallback, 5000, plain, 0, stream,
                      (CUstream stream, CUstreamCallback callback, void *user, unsigned flags),
                      (stream, callback, user, flags),
                      { return stream_add_callback(stream, callback, user, flags); })

HOSTCUDA_STREAM_ENTRY(cuLaunchHostFunc, 10000, plain, 0, stream,
                      (CUstream stream, CUhostFn fn, void *user), (stream, fn, user),
                      { return launch_host_function(stream, fn, user); })

HOSTCUDA_STREAM_ENTRY(cuStreamGetCtx, 9020, plain, 0, stream, (CUstream stream, CUcontext *out),
                      (stream, out), {
                        if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
                        current_entry of;
                        const CUresult r = context_of(stream, &of);
                        if (r == CUDA_SUCCESS) *out = handle_of(of);
                        return r;
                      })

HOSTCUDA_STREAM_ENTRY(cuStreamGetDevice, 12080, plain, 0, stream, (CUstream stream, CUdevice *out),
                      (stream, out), { return device_of(stream, out); })

HOSTCUDA_STREAM_ENTRY(cuStreamGetFlags, 5050, plain, 0, stream, (CUstream stream, unsigned *out),
                      (stream, out),
                      { return get_property(stream, out, [](const auto &s) { return s.flags; }); })

HOSTCUDA_STREAM_ENTRY(cuStreamGetPriority, 5050, plain, 0, stream, (CUstream stream, int *out),
                      (stream, out), {
                        return get_property(stream, out, [](const auto &s) { return s.priority; });
                      })

HOSTCUDA_STREAM_ENTRY(cuStreamGetId, 12000, plain, 0, stream,
                      (CUstream stream, unsigned long long *out), (stream, out), {
                        return get_property(stream, out, [](const auto &s) { return s.line->uid; });
                      })

#define HOSTCUDA_STREAM_VALUE_ENTRY(name, function, word)                              \
  HOSTCUDA_STREAM_ENTRY(name##_v2, 11070, plain, 0, stream,                            \
                        (CUstream stream, CUdeviceptr at, word value, unsigned flags), \
                        (stream, at, value, flags),                                    \
                        { return function(#name, stream, at, value, flags); })
HOSTCUDA_STREAM_VALUE_ENTRY(cuStreamWaitValue32, wait_value, cuuint32_t)
HOSTCUDA_STREAM_VALUE_ENTRY(cuStreamWaitValue64, wait_value, cuuint64_t)
HOSTCUDA_STREAM_VALUE_ENTRY(cuStreamWriteValue32, write_value, cuuint32_t)
HOSTCUDA_STREAM_VALUE_ENTRY(cuStreamWriteValue64, write_value, cuuint64_t)

extern "C" {

__attribute__((visibility("default"))) CUresult hostcuda_hold(CUstream stream) {
  stream_call call(stream);
  if (!call.s) return call.error();
  call.s->held = true;
  return CUDA_SUCCESS;
}

__attribute__((visibility("default"))) CUresult hostcuda_release(CUstream stream) {
  stream_call call(stream);
  if (!call.s) return call.error();
  call.s->held = false;
  rouse(call.s);
  return CUDA_SUCCESS;
}
}
