// What the execution side knows of all contexts: streams, the work in them, events, and one lock.
//
// One lock for everything, because an operation touches several streams' clocks at once, and
// because no operation body ever runs under it. Life of an operation: queued -> running ->
// finished, each stream strictly in order. A worker (or, in a seeded schedule, whoever waits) takes
// the head of a stream when everything it must follow has finished.
//
// The engine is never destroyed: workers may outlive main().
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "hostcuda/src/call_site.h"
#include "hostcuda/src/execution.h"
#include "hostcuda/src/execution/clock.h"
#include "hostcuda/src/machine.h"

namespace hostcuda {

struct capture;     // capture.h
struct graph_node;  // graph.h
struct event;       // event.h
struct graph;
struct graph_exec;

struct node {
  operation op;
  std::uint64_t tick = 0;
  std::uint64_t serial = 0;
  std::vector<instant> after;  // what must have finished in other streams
  vector_clock seen;           // kept for kernels only: they may touch what they did not declare
  call_site site;
  CUresult result = CUDA_SUCCESS;
  bool discard = false;     // its range has gone: do not run it
  bool in_body = false;     // the body runs right now
  bool host_waits = false;  // enqueue_and_wait: an ordinary error goes to the caller
  bool faulted = false;     // ACCESS_FAULT already recorded
};

struct stream : std::enable_shared_from_this<stream> {
  CUstream handle = nullptr;
  context *ctx = nullptr;
  execution *exec = nullptr;  // nullptr once its context has gone
  unsigned flags = 0;
  int priority = 0;
  std::uint64_t index = 0;  // in order of creation since the reset
  bool is_legacy = false;
  bool destroyed = false;
  bool held = false;
  bool has_worker = false;

  std::shared_ptr<timeline> line;
  vector_clock view;  // what is ordered before the next operation, besides the own queue
  std::deque<std::shared_ptr<node>> queue;
  std::shared_ptr<node> running;  // the head, once somebody has taken it
  std::condition_variable wake;

  std::shared_ptr<capture> cap;    // while it captures
  std::vector<graph_node *> tail;  // what the next captured operation depends on
  std::vector<touch> declared;     // hostcuda_declare, for the next launch

  bool blocking() const { return line->blocking; }
};

// The streams of one context. Made and forgotten with it.
struct execution {
  context *ctx = nullptr;
  std::shared_ptr<stream> legacy;
  std::vector<std::shared_ptr<stream>> streams;  // every one with a handle or with work, legacy too
  vector_clock departed_blocking;  // destroyed streams the host has not yet waited for
  vector_clock departed_other;
};

struct engine {
  std::mutex mu;
  std::unordered_map<CUstream, std::shared_ptr<stream>> streams;  // created, not destroyed
  std::unordered_map<CUevent, std::shared_ptr<event>> events;
  std::unordered_map<CUgraph, std::shared_ptr<graph>> graphs;
  std::unordered_map<CUgraphExec, std::shared_ptr<graph_exec>> graph_execs;
  std::vector<std::shared_ptr<capture>> captures;  // begun, not ended
  std::unordered_map<context *, execution *> contexts;
  std::vector<std::shared_ptr<stream>> active;  // the streams of all contexts, by creation
  std::condition_variable changed;              // anything moved; seeded schedules and teardown
  std::uint64_t next_id = 1;                    // handles and uids: never reused
  std::uint64_t next_serial = 1;
  std::uint64_t next_index = 0;
  std::uint64_t generation = 1;       // of the simulated machine: what threads remember is checked
  std::uint64_t dice = 0;             // state of the seeded schedule
  std::uint64_t dice_generation = 0;  // which machine the dice were shaken for
  unsigned workers = 0;
  bool dropping = false;  // reset under way: run nothing more
};

engine &the_engine();

using engine_lock = std::unique_lock<std::mutex>;

// ---- Streams of a context (stream_table.cpp). With the lock held.

// The stream meant by `handle` in a thread whose current context is `ctx`; nullptr: foreign, dead,
// or a default stream without a context.
std::shared_ptr<stream> find_stream(CUstream handle, context *ctx);
// How every entry point with a stream begins: takes the lock and looks the handle up.
struct stream_call {
  explicit stream_call(CUstream handle);
  CUresult error() const;  // what to answer when there is no such stream
  context *ctx;
  engine_lock lock;
  CUstream handle;
  std::shared_ptr<stream> s;
};
std::shared_ptr<stream> make_stream(execution &exec, CUstream handle, bool blocking);
// Once destroyed and drained: out of all lists, its clock kept for cuCtxSynchronize.
void retire_stream(const std::shared_ptr<stream> &s);
// A handle that was never given out before. `kind` only makes them recognisable in a debugger.
template <class Handle>
Handle new_handle(std::uint64_t kind) {
  return reinterpret_cast<Handle>((std::uint64_t{0xC5} << 40) | (kind << 36) |
                                  (the_engine().next_id++ << 4));
}

// ---- Running (executor.cpp). With the lock held on entry and exit; bodies run without it.

// Gives `op` its place: after the stream, and as legacy semantics say. `waits` is joined too.
// `trivial`: nothing to run and `after` calls nobody, so it may be finished at once.
std::shared_ptr<node> post(engine_lock &lock, const std::shared_ptr<stream> &s, operation &&op,
                           const vector_clock *waits, bool trivial, const call_site *site);
// Blocks until `tick` of `line` has finished. In a seeded schedule runs what is needed.
void wait_for(engine_lock &lock, const std::shared_ptr<timeline> &line, std::uint64_t tick);
// Lets a seeded schedule make a little progress: what a query does.
void nudge(engine_lock &lock);
// Whether the head of `s` may run now.
bool is_ready(const stream &s);
// Runs the head of `s` on this thread. Requires: is_ready(*s), nothing running.
void run_head(engine_lock &lock, const std::shared_ptr<stream> &s);
// Wakes whoever could run the head of `s`.
void rouse(const std::shared_ptr<stream> &s);
// The same after a post: behind other work nobody need be woken, its end sees to that.
void announce(const std::shared_ptr<stream> &s);
// break_context, and wakes what waits in it.
void poison(engine_lock &lock, context *ctx, CUresult code);

// A pseudo-random number that depends on its arguments only.
std::uint64_t mix(std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0);

// ---- Waiting as the API does it (enqueue.cpp). With the lock held.

// Waits for the stream (legacy: and for all blocking ones) and joins the host clock.
CUresult synchronize_stream(engine_lock &lock, const std::shared_ptr<stream> &s);
// Whether all of it is done; if so joins the host clock. NOT_READY otherwise.
CUresult query_stream(engine_lock &lock, const std::shared_ptr<stream> &s);
// The capture rules for an operation on `s` (or, with `waits`, a host wait for it).
CUresult capture_gate(stream &s, bool waits);

// What this thread runs: set around every body and `after`. nullptr outside.
struct running_work {
  stream *s;
  node *n;
  bool in_kernel;
};
running_work *&this_threads_work();

}  // namespace hostcuda
