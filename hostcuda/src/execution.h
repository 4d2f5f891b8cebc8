// Work queued on streams, when it runs, and the oracle that judges whether it was safe.
//
// Happens-before is computed when work is queued, not from when it happens to finish: every stream
// has a vector clock, an event carries the clock at its record, waiting joins clocks, and a
// successful host wait or query joins into one host clock. Work A is *done as far as the program
// knows* when its stamp is within the host clock. So a race is found on every run, not on a lucky
// one. docs/hostcuda.md#the-oracle
//
// Lock order: the execution side calls nothing of the memory side with its own lock held, except
// reading a context's `sticky`. Operation bodies run with no lock held and may take the memory
// side's; so the memory side must hold no lock of its own, that a body could want, when it calls
// anything here that waits: synchronize, wait_for_device, enqueue_and_wait, range_goes_away,
// reset_execution and the destruction of `context::exec`.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "hostcuda/src/context.h"

namespace hostcuda {

struct touch {
  CUdeviceptr at;
  std::size_t bytes;
  bool write;
};

// The place of an operation: the how-manieth of which stream's. tick 0: nowhere (a capture).
struct place_in_time {
  std::uint64_t line = 0;
  std::uint64_t tick = 0;
};

// What work queued on a stream from now on comes after.
struct stream_order {
  std::uint64_t line = 0;  // all of its own
  bool capturing = false;  // what is recorded runs at some other time
  std::vector<place_in_time> after;
};

struct operation {
  const char *what;                  // the API function that queued it, for reports
  std::vector<touch> touches;        // device ranges it will read or write
  std::function<CUresult()> body;    // runs in stream order; an error breaks the context
  bool run_while_capturing = false;  // executed even if the stream is capturing (never for copies)

  // Set when the body reads memory that may change once the call has returned. Where nothing is
  // ahead of it the body runs at once, on the calling thread; otherwise this makes the body to
  // queue, from what it reads now.
  std::function<std::function<CUresult()>()> stage{};

  // Shorter than waking a worker for it: where nothing is ahead of it, it runs at once as well.
  bool brief = false;

  // The rest is for the execution side itself.
  std::function<void(CUresult)> after{};  // runs after the body, or instead of it with the error
  std::function<bool()> ready{};          // polled: the operation starts once it says true
  place_in_time *place = nullptr;         // filled before it can run
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_MEMCPY;  // what it becomes in a captured graph
};

// Makes and tears down the execution side of a context (streams are drained, then destroyed).
void attach_execution(context *ctx);

// Queues `op` on `stream` (NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD or a created one) of the
// current context, with legacy-stream semantics. Takes the oracle's view of its touches (unordered
// alias). While the stream captures, the operation is recorded instead of run.
// Errors: INVALID_HANDLE; STREAM_CAPTURE_* as CUDA defines them.
CUresult enqueue(CUstream stream, operation op);

// Errors: INVALID_HANDLE, INVALID_CONTEXT.
CUresult order_of(CUstream stream, stream_order *out);

// Queues `op` on the default stream and waits for it: the synchronous copies and memsets. Runs
// the body on the calling thread where that is equivalent. Returns the body's error.
// `stream` is nullptr (legacy) or CU_STREAM_PER_THREAD (the _ptds functions).
CUresult enqueue_and_wait(operation op, CUstream stream = nullptr);

// Waits for everything queued in the context. Also the host clock's join.
CUresult synchronize(context *ctx);

// Called before a range stops being mapped (unmap, free, access taken away, set to read-only).
// CUDA_SUCCESS when no unfinished work touches it. Otherwise the violation is recorded with both
// call sites, the context of that work is broken with ILLEGAL_ADDRESS (strict), and the caller goes
// on as a GPU would: the unmap itself succeeds.
void range_goes_away(CUdeviceptr at, std::size_t bytes, const char *what, bool is_free);

// As cuMemFree does: waits for the work queued in every context of `device`. What the host learns
// from it is only that blocking streams are done: CUDA promises nothing about the others.
void wait_for_device(CUdevice device);

// True while any stream captures in a mode that forbids the calling thread an unsafe call. The
// captures concerned are invalidated, and the caller returns STREAM_CAPTURE_UNSUPPORTED.
bool capture_forbids_unsafe_call();

// Joins every worker and forgets every stream, event, graph, module and violation of every context:
// hostcuda_reset, before reset_contexts(). Registered kernels stay. Queued work is dropped.
void reset_execution();

// For hostcuda_get_counters: what counters() holds, by name.
std::uint64_t live_streams();
std::uint64_t live_events();
std::uint64_t violation_count();

}  // namespace hostcuda
