// Stream table: the default streams of each context and thread, created streams, and destroyed
// streams with queued work.
#include <algorithm>

#include "hostcuda/src/counters.h"
#include "hostcuda/src/execution/capture.h"
#include "hostcuda/src/execution/engine.h"
#include "hostcuda/src/execution/event.h"
#include "hostcuda/src/execution/graph.h"
#include "hostcuda/src/execution/module.h"
#include "hostcuda/src/execution/oracle.h"
#include "hostcuda/src/execution/user_object.h"
#include "hostcuda/src/thread_owned.h"

namespace hostcuda {
namespace {

// The per-thread default streams of one thread, one per context.
struct thread_streams {
  struct used {
    context *ctx;
    std::uint64_t generation;
    std::weak_ptr<stream> s;
  };
  std::vector<used> entries;

  ~thread_streams() {
    engine_lock lock(the_engine().mu);
    for (const auto &entry : entries) {
      const auto s = entry.s.lock();
      if (!s || s->destroyed) continue;
      s->destroyed = true;
      if (s->queue.empty()) {
        s->wake.notify_all();
        retire_stream(s);
      }
    }
  }
};

std::shared_ptr<stream> per_thread_stream(execution &exec) {
  auto &mine = thread_owned<thread_streams>();
  const auto generation = the_engine().generation;
  for (const auto &entry : mine.entries) {
    if (entry.ctx != exec.ctx || entry.generation != generation) continue;
    if (auto s = entry.s.lock(); s && !s->destroyed) return s;
  }
  std::erase_if(mine.entries, [](const auto &entry) { return entry.s.expired(); });
  auto s = make_stream(exec, CU_STREAM_PER_THREAD, true);
  mine.entries.push_back({exec.ctx, generation, s});
  return s;
}

void destroy_execution(execution *exec) {
  if (exec == nullptr) return;
  auto &e = the_engine();
  engine_lock lock(e.mu);
  // Absent if a reset has removed it.
  if (const auto found = e.contexts.find(exec->ctx);
      found != e.contexts.end() && found->second == exec) {
    const auto all = exec->streams;
    for (const auto &s : all) {
      s->held = false;
      for (const auto &n : s->queue) n->discard = n->discard || n->op.ready != nullptr;
      rouse(s);
    }
    for (const auto &s : all) wait_for(lock, s->line, s->line->queued);
    for (const auto &s : all) {
      oracle_learn(s->view);
      oracle_learn(s->line, s->line->queued);
      if (e.streams.erase(s->handle) != 0) counters().live_streams.fetch_sub(1);
      s->destroyed = true;
      s->wake.notify_all();
      retire_stream(s);
      s->exec = nullptr;
      if (s->cap) drop_capture(*s->cap);
    }
    oracle_learn(exec->departed_blocking);
    oracle_learn(exec->departed_other);
    counters().live_events.fetch_sub(
        std::erase_if(e.events, [&](const auto &entry) { return entry.second->ctx == exec->ctx; }));
    e.contexts.erase(found);
  }
  lock.unlock();
  forget_modules(exec->ctx);
  delete exec;
}

}  // namespace

std::shared_ptr<stream> make_stream(execution &exec, CUstream handle, bool blocking) {
  auto &e = the_engine();
  auto s = std::make_shared<stream>();
  s->handle = handle;
  s->ctx = exec.ctx;
  s->exec = &exec;
  s->flags = blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
  s->index = e.next_index++;
  s->line = std::make_shared<timeline>(e.next_id++);
  s->line->blocking = blocking;
  exec.streams.push_back(s);
  e.active.push_back(s);
  return s;
}

std::shared_ptr<stream> find_stream(CUstream handle, context *ctx) {
  auto &e = the_engine();
  if (handle != nullptr && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
    const auto found = e.streams.find(handle);
    return found == e.streams.end() ? nullptr : found->second;
  }
  const auto exec = e.contexts.find(ctx);
  if (exec == e.contexts.end()) return nullptr;
  if (handle == CU_STREAM_PER_THREAD) return per_thread_stream(*exec->second);
  return exec->second->legacy;
}

stream_call::stream_call(CUstream h)
    : ctx(current_context()), lock(the_engine().mu), handle(h), s(find_stream(h, ctx)) {}

CUresult stream_call::error() const {
  const bool standard =
      handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
  if (!standard)
    return the_engine().orphans.contains(handle) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                                 : CUDA_ERROR_INVALID_HANDLE;
  return ctx == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

void retire_stream(const std::shared_ptr<stream> &s) {
  auto &e = the_engine();
  const auto keep = s;  // `s` may be an element of one of these lists
  std::erase(e.active, keep);
  if (keep->exec == nullptr) return;
  auto &departed = keep->blocking() ? keep->exec->departed_blocking : keep->exec->departed_other;
  departed.join(keep->view);
  departed.join(keep->line, keep->line->queued);
  std::erase(keep->exec->streams, keep);
}

void attach_execution(context *ctx) {
  auto &e = the_engine();
  auto exec = std::make_unique<execution>();
  exec->ctx = ctx;
  {
    engine_lock lock(e.mu);
    exec->legacy = make_stream(*exec, CU_STREAM_LEGACY, true);
    exec->legacy->is_legacy = true;
    e.contexts[ctx] = exec.get();
  }
  ctx->exec = {exec.release(), destroy_execution};
}

void reset_execution() {
  auto &e = the_engine();
  std::vector<std::shared_ptr<stream>> gone;  // destroyed without the lock
  std::vector<std::shared_ptr<node>> dropped;
  decltype(e.graphs) graphs;
  decltype(e.graph_execs) graph_execs;
  decltype(e.events) events;
  {
    engine_lock lock(e.mu);
    e.dropping = true;
    for (const auto &s : e.active) {
      s->held = false;
      s->wake.notify_all();
    }
    while (e.workers != 0) e.changed.wait(lock);
    for (const auto &s : e.active) {
      dropped.insert(dropped.end(), s->queue.begin(), s->queue.end());
      s->queue.clear();
      s->destroyed = true;
      s->exec = nullptr;
      s->cap.reset();
      s->view.clear();
      gone.push_back(s);
    }
    for (const auto &[ctx, exec] : e.contexts) {
      exec->streams.clear();
      exec->legacy.reset();
      exec->ahead_of_legacy.clear();
      exec->departed_blocking.clear();
      exec->departed_other.clear();
    }
    e.contexts.clear();
    e.active.clear();
    e.streams.clear();
    e.orphans.clear();
    e.destroyed_handles.clear();
    e.captures.clear();
    e.graph_nodes.clear();
    graphs.swap(e.graphs);
    graph_execs.swap(e.graph_execs);
    events.swap(e.events);
    e.shared_recordings.clear();
    e.before_others.clear();
    oracle_reset();
    ++e.generation;
    e.next_index = 0;
    e.dropping = false;
    counters().live_streams = 0;
    counters().live_events = 0;
    counters().violations = 0;
  }
  reset_user_objects();
  forget_modules(nullptr);
}

std::uint64_t live_streams() {
  return counters().live_streams.load(std::memory_order_relaxed);
}
std::uint64_t live_events() {
  return counters().live_events.load(std::memory_order_relaxed);
}

}  // namespace hostcuda
