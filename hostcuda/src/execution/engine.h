// State of the execution side for all contexts: streams, queued work, events, graphs, and one lock.
//
// There is one lock, because an operation updates the clocks of several streams, and because no
// operation body runs under it. States of an operation: queued -> running -> finished, strictly in
// order for each stream. A worker (in a seeded schedule: a waiting thread) runs the head of a
// stream when all operations that precede it have finished.
//
// The engine is never destroyed, because workers may outlive main().
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "hostcuda/src/call_site.h"
#include "hostcuda/src/execution.h"
#include "hostcuda/src/execution/clock.h"
#include "hostcuda/src/machine.h"

namespace hostcuda {

struct capture;     // capture.h
struct graph_node;  // graph.h
struct event;       // event.h
struct moment;
struct graph;
struct graph_exec;

struct node {
  operation op;
  std::uint64_t tick = 0;
  std::uint64_t serial = 0;
  std::vector<instant> after;  // operations of other streams that must finish first
  vector_clock seen;           // kernels, for undeclared accesses; frees, and graphs with frees
  call_site site;
  CUresult result = CUDA_SUCCESS;
  bool discard = false;  // its range was unmapped or freed: do not run the body
  bool in_body = false;  // the body is running
  bool faulted = false;  // an ACCESS_FAULT is already recorded
};

struct stream : std::enable_shared_from_this<stream> {
  CUstream handle = nullptr;
  context *ctx = nullptr;
  green_context *green = nullptr;  // nullptr: it is in no green context
  execution *exec = nullptr;       // nullptr after its context is destroyed
  unsigned flags = 0;
  int priority = 0;
  std::uint64_t index = 0;  // in order of creation since the reset
  bool is_legacy = false;
  bool destroyed = false;
  bool held = false;
  bool has_worker = false;
  bool ahead = false;             // in execution::ahead_of_legacy
  std::uint64_t legacy_seen = 0;  // the last operation of the legacy stream that it follows

  std::shared_ptr<timeline> line;
  vector_clock view;  // clock of the next operation, without the stream's own queue
  std::deque<std::shared_ptr<node>> queue;
  std::shared_ptr<node> running;  // the head, while a thread runs it
  std::condition_variable wake;

  std::shared_ptr<capture> cap;    // set while the stream captures
  std::vector<graph_node *> tail;  // dependencies of the next captured operation
  std::vector<touch> declared;     // accesses declared for the next launch (hostcuda_declare)

  bool blocking() const { return line->blocking; }
};

// The streams of one context. Has the lifetime of the context.
struct execution {
  context *ctx = nullptr;
  std::shared_ptr<stream> legacy;
  std::vector<std::shared_ptr<stream>> streams;  // streams with a handle or with work, and `legacy`
  // Blocking streams with operations that the legacy stream does not follow yet. The operations of
  // a stream run in order, so its next operation need not follow again what an earlier one follows.
  std::vector<std::shared_ptr<stream>> ahead_of_legacy;
  vector_clock departed_blocking;  // destroyed streams outside the host clock
  vector_clock departed_other;
};

struct engine {
  std::mutex mu;
  std::unordered_map<CUstream, std::shared_ptr<stream>> streams;  // created and not destroyed
  std::unordered_set<CUstream> orphans;  // whose green context was destroyed before them
  std::unordered_map<CUevent, std::shared_ptr<event>> events;
  std::unordered_map<CUgraph, std::shared_ptr<graph>> graphs;
  std::unordered_set<const graph_node *> graph_nodes;  // that the program can name
  std::unordered_map<CUgraphExec, std::shared_ptr<graph_exec>> graph_execs;
  std::vector<CUstream> destroyed_handles;         // to be given out again: stream_handles=reuse
  std::vector<std::shared_ptr<capture>> captures;  // begun and not ended
  std::unordered_map<context *, execution *> contexts;
  std::vector<std::shared_ptr<stream>> active;  // the streams of all contexts, in order of creation
  std::condition_variable changed;              // progress, for seeded runs and teardown
  std::vector<std::shared_ptr<moment>> shared_recordings;  // of interprocess events, not done yet
  vector_clock before_others;                              // those that are done
  std::uint64_t next_id = 1;  // handles and uids, which are never reused
  std::uint64_t next_serial = 1;
  std::uint64_t next_index = 0;
  std::uint64_t generation = 1;       // of the simulated machine; invalidates per-thread state
  std::uint64_t dice = 0;             // state of the seeded schedule
  std::uint64_t dice_generation = 0;  // generation for which `dice` was seeded
  unsigned workers = 0;
  bool dropping = false;  // a reset is in progress: do not start work
};

engine &the_engine();

using engine_lock = std::unique_lock<std::mutex>;

// ---- Streams of a context (stream_table.cpp). Require the lock.

// Finds the stream of `handle` in a thread with the current context `ctx`. Returns nullptr for an
// unknown or dead handle, and for a default stream without a context.
std::shared_ptr<stream> find_stream(CUstream handle, context *ctx);
// Prologue of an entry point with a stream: takes the lock and finds the stream.
struct stream_call {
  explicit stream_call(CUstream handle);
  CUresult error() const;  // the result to return when `s` is nullptr
  context *ctx;
  engine_lock lock;
  CUstream handle;
  std::shared_ptr<stream> s;
};
std::shared_ptr<stream> make_stream(execution &exec, CUstream handle, bool blocking);
// Removes a destroyed and drained stream from all lists. Its clock is kept for cuCtxSynchronize.
void retire_stream(const std::shared_ptr<stream> &s);
// Returns a handle that was never used before. `kind` makes the type visible in a debugger.
template <class Handle>
Handle new_handle(std::uint64_t kind) {
  return reinterpret_cast<Handle>((std::uint64_t{0xC5} << 40) | (kind << 36) |
                                  (the_engine().next_id++ << 4));
}

// ---- Running (executor.cpp). Require the lock, and release it while a body runs.

// Queues `op` behind the stream's work, with legacy-stream semantics. Joins `waits` into its clock.
std::shared_ptr<node> post(engine_lock &lock, const std::shared_ptr<stream> &s, operation &&op,
                           const vector_clock *waits, const call_site *site);

// post() in two steps.
struct queue_place {
  std::uint64_t tick;
  std::uint64_t serial;
  std::vector<instant> after;
};
queue_place take_place(const std::shared_ptr<stream> &s, const vector_clock *waits);
std::shared_ptr<node> post_at(const std::shared_ptr<stream> &s, operation &&op, queue_place &&place,
                              const call_site *site);
// Whether an operation without a body would finish at once.
bool nothing_precedes(const stream &s, const queue_place &place);

// As post() of an operation without a body, whose `after` calls no user code. If nothing precedes it, it
// finishes at once and is not queued. Returns its tick.
template <class After>
std::uint64_t post_mark(const std::shared_ptr<stream> &s, const char *what,
                        const vector_clock *waits, After after) {
  queue_place place = take_place(s, waits);
  const std::uint64_t tick = place.tick;
  if (nothing_precedes(*s, place)) {
    after(CUDA_SUCCESS);
    s->line->finished = tick;
    return tick;
  }
  operation op{what, {}, {}};
  op.after = std::move(after);
  post_at(s, std::move(op), std::move(place), nullptr);
  return tick;
}

// Blocks until `tick` of `line` has finished. In a seeded schedule, runs work until then.
void wait_for(engine_lock &lock, const std::shared_ptr<timeline> &line, std::uint64_t tick);
// Runs up to three operations of a seeded schedule, for a query.
void nudge(engine_lock &lock);
// Whether the head of `s` can run now.
bool is_ready(const stream &s);
// Runs the head of `s` on this thread.
// Requires: is_ready(*s); no operation of `s` is running.
void run_head(engine_lock &lock, const std::shared_ptr<stream> &s);
// Wakes the threads that can run the head of `s`.
void rouse(const std::shared_ptr<stream> &s);
// As rouse(), after post(). Wakes no thread if other work precedes `op`: the end of that work does.
void announce(const std::shared_ptr<stream> &s);
// Breaks the context (break_context) and wakes the threads that wait in it.
void poison(engine_lock &lock, context *ctx, CUresult code);

// A pseudo-random number that depends on its arguments only.
std::uint64_t mix(std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0);

// ---- Waiting, for the API functions (enqueue.cpp). Require the lock.

// Waits for the stream (the legacy stream: and for all blocking streams) and joins the host clock.
CUresult synchronize_stream(engine_lock &lock, const std::shared_ptr<stream> &s);
// If all work of the stream is done, joins the host clock. Otherwise returns NOT_READY.
CUresult query_stream(engine_lock &lock, const std::shared_ptr<stream> &s);
// Checks the capture rules for an operation on `s` or, with `waits`, for a host wait for `s`.
CUresult capture_gate(stream &s, bool waits);

// The operation that this thread is running, set during every body and `after`; otherwise nullptr.
struct running_work {
  stream *s;
  node *n;
  bool in_kernel;
  unsigned shared_bytes = 0;        // of the kernel
  CUresult failure = CUDA_SUCCESS;  // of the kernel, if no access has faulted
};
running_work *&this_threads_work();

}  // namespace hostcuda
