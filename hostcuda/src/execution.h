// Interface of the execution side (src/execution): queues work on streams, waits for it, and
// reports memory that is removed while work may still use it.
//
// Happens-before is computed when work is queued, with vector clocks, and does not depend on when
// the work finishes: an event carries the clock of its record, waiting joins clocks, and a
// successful host wait or query joins into one host clock. Work is known to be done when its tick
// is within the host clock. A missing wait is therefore found on every run.
// hostcuda/docs/oracle.md
//
// Lock order: the execution side calls the memory side with engine::mu released, except that it
// reads `context::sticky`. Operation bodies run without a lock and may take the memory side's lock.
// The memory side therefore holds no lock that a body may take when it calls a function here that
// waits: synchronize, wait_for_device, enqueue_and_wait, range_goes_away, reset_execution, and the
// destruction of `context::exec`.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "hostcuda/src/context.h"

namespace hostcuda {

struct node;
struct node_params;  // node_params.h
struct stream;
class vector_clock;

struct touch {
  CUdeviceptr at;
  std::size_t bytes;
  bool write;
};

// Position of an operation: its index (`tick`) in a stream (`line`). Tick 0: the operation is
// captured and has no position.
struct place_in_time {
  std::uint64_t line = 0;
  std::uint64_t tick = 0;
};

// The operations that precede the next operation of a stream.
struct stream_order {
  std::uint64_t line = 0;  // the stream itself: all of its operations precede
  bool capturing = false;  // the next operation is captured and has no order yet
  CUdevice device = 0;     // of the stream
  std::vector<place_in_time> after;
};

struct operation {
  const char *what;                  // the API function that queued it, for reports
  std::vector<touch> touches;        // device ranges it will read or write
  std::function<CUresult()> body;    // runs in stream order; an error breaks the context
  bool run_while_capturing = false;  // executed even if the stream is capturing (never for copies)

  // Set when the body reads memory that may change after the call has returned. If the stream is
  // idle, the body runs at once on the calling thread. Otherwise `stage` reads the memory now and
  // returns the body to queue.
  std::function<std::function<CUresult()>()> stage{};

  // The body takes less time than waking a worker. If the stream is idle, it runs at once.
  bool brief = false;

  // enqueue() returns when the body has run, with its error, unless the stream captures. An error
  // that is not sticky does not break the context.
  bool host_waits = false;

  // The body frees the ranges in `touches`. Accesses ordered before it belong to an owner who has
  // given the bytes back properly, so the oracle forgets them.
  bool frees = false;

  // The members below are for the execution side only.
  std::function<void(CUresult)> after{};  // runs after the body, or instead of it with the error
  std::function<bool()> ready{};          // polled: the operation starts when it returns true
  place_in_time *place = nullptr;         // filled before it can run
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_MEMCPY;  // its type in a graph
  std::shared_ptr<const node_params> params{};       // those of its node in a graph
  // Makes `params` if the stream captures. enqueue() calls it before it returns, or never.
  std::function<std::shared_ptr<const node_params>()> describe{};
  std::function<void(vector_clock *)> waits{};  // adds what it waits for; under engine::mu
  // Called under engine::mu when it has its position, before it can run.
  std::function<void(const stream &, const node &)> queued{};
};

// Attaches streams to a context. Destroying `context::exec` drains and destroys them.
void attach_execution(context *ctx);

// Queues `op` on `stream` (NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD or a created one) of the
// current context, with legacy-stream semantics. Checks its accesses for unordered aliases. While
// the stream captures, the operation is recorded instead of run.
// Errors: INVALID_HANDLE; STREAM_CAPTURE_* as CUDA defines them.
CUresult enqueue(CUstream stream, operation op);

// Creates a stream in a context or a green context.
// Errors: INVALID_VALUE, INVALID_CONTEXT.
CUresult create_stream(const current_entry &where, CUstream *out, unsigned flags, int priority);
// The context of a stream; of a default stream that which is current.
// Errors: INVALID_HANDLE, INVALID_CONTEXT, CONTEXT_IS_DESTROYED.
CUresult context_of(CUstream stream, current_entry *out);
// Ends the streams of a destroyed green context. Their queued work still runs; later calls return
// CONTEXT_IS_DESTROYED.
void end_streams_of(const green_context *green);

// Errors: INVALID_HANDLE, INVALID_CONTEXT.
CUresult order_of(CUstream stream, stream_order *out);

// Queues `op` on the default stream and waits for it: the synchronous copies and memsets. Runs
// the body on the calling thread where that is equivalent. Returns the body's error.
// `stream` is nullptr (legacy) or CU_STREAM_PER_THREAD (the _ptds functions).
CUresult enqueue_and_wait(operation op, CUstream stream = nullptr);

// Waits for all work queued in the context and joins the host clock.
CUresult synchronize(context *ctx);

// Reports a violation if unfinished work accesses a range that is about to be unmapped or freed, or
// to lose access. The violation has both call sites. In strict mode the context of that work is
// broken with ILLEGAL_ADDRESS. The caller continues either way, as a GPU does.
void range_goes_away(CUdeviceptr at, std::size_t bytes, const char *what, bool is_free);

// Called by the body of a queued free, before the bytes can get another owner: forgets the accesses
// to the range that are ordered before the running operation. Does what operation::frees does at
// the call, for accesses that kernels have made since, and for a free in a graph.
void forget_accesses_before_this(CUdeviceptr at, std::size_t bytes);

// Forgets all accesses to host memory that is given back. The oracle does not watch host memory,
// but its addresses may later be device memory.
void forget_accesses(CUdeviceptr at, std::size_t bytes);

// Waits for the work queued in every context of `device`, as cuMemFree does. Only the blocking
// streams join the host clock, because CUDA does not guarantee that cuMemFree waits for the others.
void wait_for_device(CUdevice device);

// Whether a capture forbids unsafe calls on the calling thread. If so, invalidates those captures;
// the caller returns STREAM_CAPTURE_UNSUPPORTED.
bool capture_forbids_unsafe_call();

// Joins the workers, drops queued work, and removes all streams, events, graphs, modules and
// violations. Registered kernels stay. hostcuda_reset() calls it before reset_contexts().
void reset_execution();

// Values of counters(), for hostcuda_get_counters().
std::uint64_t live_streams();
std::uint64_t live_events();
std::uint64_t violation_count();

}  // namespace hostcuda
