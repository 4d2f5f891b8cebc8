#include <algorithm>
#include <utility>

#include "hostcuda/src/execution/capture.h"
#include "hostcuda/src/execution/engine.h"
#include "hostcuda/src/execution/event.h"
#include "hostcuda/src/execution/oracle.h"

namespace hostcuda {
namespace {

std::vector<std::vector<virtual_range>> other_addresses(const std::vector<touch> &touches) {
  std::vector<std::vector<virtual_range>> all;
  for (std::size_t i = 0; i < touches.size(); ++i) {
    auto found = aliases(touches[i].at, touches[i].bytes);
    if (found.empty()) continue;
    all.resize(touches.size());
    all[i] = std::move(found);
  }
  return all;
}

// Passes the accesses of operation `n` to the oracle. Its clock is s.view; earlier operations of
// its own stream precede it implicitly.
void notify_oracle(engine_lock &lock, const std::shared_ptr<stream> &s,
                   const std::shared_ptr<node> &n,
                   const std::vector<std::vector<virtual_range>> &others) {
  const position where{s->line, n->tick, n->serial, &s->view, n->op.what, s->ctx, &n->site};
  const auto &touches = n->op.touches;
  const auto races = [&](const std::vector<std::vector<virtual_range>> &at, bool report) {
    bool any = false;
    for (std::size_t i = 0; i < std::min(touches.size(), at.size()); ++i) {
      any = (!at[i].empty() && oracle_check_alias(where, touches[i], at[i], report)) || any;
    }
    return any;
  };
  bool sure = false;
  if (races(others, false)) {
    lock.unlock();
    const auto now = other_addresses(touches);
    lock.lock();
    sure = races(now, true);
  }
  for (const touch &t : touches) {
    if (n->op.frees) {
      oracle_forget(t.at, t.bytes, &where);
    } else {
      oracle_note(where, t, false);
    }
  }
  if (sure && current_settings().strict) poison(lock, s->ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
}

CUresult sticky_of(const stream &s) {
  return s.ctx->sticky.load(std::memory_order_acquire);
}

// Waits until `n`, the last operation of `s`, has run, and joins the host clock. Returns its
// result. With `at_once`, runs it on this thread if it is the ready head of its stream.
CUresult complete(engine_lock &lock, const std::shared_ptr<stream> &s,
                  const std::shared_ptr<node> &n, bool at_once) {
  // Read now: what other threads queue during the wait is not waited for.
  const vector_clock before = s->view;
  if (at_once && !s->queue.empty() && s->queue.front() == n && s->running == nullptr &&
      is_ready(*s)) {
    run_head(lock, s);
  } else {
    rouse(s);
    wait_for(lock, s->line, n->tick);
  }
  oracle_learn(before);
  oracle_learn(s->line, n->tick);
  return n->result;
}

}  // namespace

CUresult capture_gate(stream &s, bool waits) {
  if (s.is_legacy) {
    return s.exec != nullptr && invalidate_blocking(*s.exec) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
                                                             : CUDA_SUCCESS;
  }
  if (!s.cap) return CUDA_SUCCESS;
  if (s.cap->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!waits) return CUDA_SUCCESS;
  s.cap->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult enqueue(CUstream handle, operation op) {
  if (this_threads_work() != nullptr) return CUDA_ERROR_NOT_PERMITTED;  // in a callback
  call_site site;
  if (!op.touches.empty()) site = capture_call_site();
  const auto others = other_addresses(op.touches);
  stream_call call(handle);
  if (!call.s) return call.error();
  auto &s = call.s;
  if (!op.run_while_capturing) {
    if (const CUresult r = capture_gate(*s, false); r != CUDA_SUCCESS) return r;
    if (s->cap) {
      if (op.describe) op.params = std::exchange(op.describe, nullptr)();
      record_in_capture(*s, std::move(op));
      return CUDA_SUCCESS;
    }
  }
  op.describe = nullptr;
  if (const CUresult r = sticky_of(*s); r != CUDA_SUCCESS) return r;
  place_in_time *const place = op.place;
  vector_clock waits;
  if (op.waits) op.waits(&waits);
  const auto n = post(call.lock, s, std::move(op), &waits, &site);
  if (n->op.queued) n->op.queued(*s, *n);
  if (place != nullptr) *place = {s->line->uid, n->tick};
  if (!n->op.touches.empty()) notify_oracle(call.lock, s, n, others);
  // The oracle treats the operation as queued, even if it runs at once: the program must not rely
  // on that.
  const schedule_kind schedule = current_settings().schedule;
  // A seeded schedule also runs other streams before it, in some of its orders.
  if (n->op.host_waits) return complete(call.lock, s, n, schedule != schedule_kind::seeded);
  const bool at_once = (n->op.stage && schedule != schedule_kind::seeded) ||
                       (n->op.brief && schedule == schedule_kind::threads);
  if (at_once && !s->queue.empty() && s->queue.front() == n && s->running == nullptr &&
      is_ready(*s)) {
    run_head(call.lock, s);
    return CUDA_SUCCESS;
  }
  if (n->op.stage) n->op.body = n->op.stage();
  announce(s);
  return CUDA_SUCCESS;
}

CUresult order_of(CUstream handle, stream_order *out) {
  stream_call call(handle);
  if (!call.s) return call.error();
  *out = {call.s->line->uid, call.s->cap != nullptr, call.s->ctx->device, {}};
  for (const auto &[line, tick] : call.s->view.entries()) out->after.push_back({line->uid, tick});
  return CUDA_SUCCESS;
}

CUresult enqueue_and_wait(operation op, CUstream handle) {
  if (this_threads_work() != nullptr) return CUDA_ERROR_NOT_PERMITTED;
  const auto others = other_addresses(op.touches);
  stream_call call(handle);
  if (!call.s) return call.error();
  auto &s = call.s;
  if (const CUresult r = capture_gate(*s, true); r != CUDA_SUCCESS) return r;
  if (const CUresult r = sticky_of(*s); r != CUDA_SUCCESS) return r;
  op.host_waits = true;
  const auto n = post(call.lock, s, std::move(op), nullptr, nullptr);
  if (!n->op.touches.empty()) notify_oracle(call.lock, s, n, others);
  return complete(call.lock, s, n, true);
}

CUresult synchronize_stream(engine_lock &lock, const std::shared_ptr<stream> &s) {
  if (const CUresult r = capture_gate(*s, true); r != CUDA_SUCCESS) return r;
  // Read now, so that work queued during the wait is not waited for.
  const auto tick = s->line->queued;
  vector_clock clock = s->view;
  clock.join(s->line, tick);
  std::vector<instant> rest;
  if (s->is_legacy && s->exec != nullptr) {
    for (const auto &other : s->exec->streams) {
      if (other == s || !other->blocking()) continue;
      clock.join(other->view);
      clock.join(other->line, other->line->queued);
      rest.emplace_back(other->line, other->line->queued);
    }
    clock.join(s->exec->departed_blocking);
  }
  wait_for(lock, s->line, tick);
  for (const auto &[line, until] : rest) wait_for(lock, line, until);
  oracle_learn(clock);
  return sticky_of(*s);
}

CUresult query_stream(engine_lock &lock, const std::shared_ptr<stream> &s) {
  if (const CUresult r = capture_gate(*s, true); r != CUDA_SUCCESS) return r;
  nudge(lock);
  vector_clock clock = s->view;
  clock.join(s->line, s->line->queued);
  bool done = s->line->finished == s->line->queued;
  if (s->is_legacy && s->exec != nullptr) {
    for (const auto &other : s->exec->streams) {
      if (other == s || !other->blocking()) continue;
      clock.join(other->view);
      clock.join(other->line, other->line->queued);
      done = done && other->line->finished == other->line->queued;
    }
    clock.join(s->exec->departed_blocking);
  }
  if (const CUresult r = sticky_of(*s); r != CUDA_SUCCESS) return r;
  if (!done) return CUDA_ERROR_NOT_READY;
  oracle_learn(clock);
  return CUDA_SUCCESS;
}

namespace {

// Waits for all streams of `exec`. Joins the host clock for all of them, or for the blocking ones.
void drain(engine_lock &lock, execution &exec, bool learn_all) {
  vector_clock clock;
  std::vector<instant> targets;
  for (const auto &s : exec.streams) {
    targets.emplace_back(s->line, s->line->queued);
    if (!learn_all && !s->blocking()) continue;
    clock.join(s->view);
    clock.join(s->line, s->line->queued);
  }
  clock.join(exec.departed_blocking);
  if (learn_all) clock.join(exec.departed_other);
  for (const auto &[line, tick] : targets) wait_for(lock, line, tick);
  oracle_learn(clock);
}

}  // namespace

CUresult synchronize(context *ctx) {
  if (this_threads_work() != nullptr) return CUDA_ERROR_NOT_PERMITTED;
  auto &e = the_engine();
  engine_lock lock(e.mu);
  const auto found = e.contexts.find(ctx);
  if (found == e.contexts.end()) return CUDA_ERROR_INVALID_CONTEXT;
  bool capturing = false;
  for (const auto &s : found->second->streams) {
    if (!s->cap) continue;
    s->cap->invalidated = true;
    capturing = true;
  }
  if (capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  drain(lock, *found->second, true);
  const CUresult r = ctx->sticky.load(std::memory_order_acquire);
  lock.unlock();
  if (r == CUDA_SUCCESS) memory_synchronised();
  return r;
}

void wait_for_device(CUdevice device) {
  if (this_threads_work() != nullptr) return;  // a body that waits for itself would deadlock
  auto &e = the_engine();
  engine_lock lock(e.mu);
  std::vector<context *> all;
  for (const auto &[ctx, exec] : e.contexts) {
    if (ctx->device == device) all.push_back(ctx);
  }
  for (context *ctx : all) {
    const auto found = e.contexts.find(ctx);  // may have been destroyed during the wait
    if (found != e.contexts.end()) drain(lock, *found->second, false);
  }
}

void forget_accesses_before_this(CUdeviceptr at, std::size_t bytes) {
  const running_work *const work = this_threads_work();
  if (work == nullptr) return;
  const node &n = *work->n;
  engine_lock lock(the_engine().mu);
  const position last{work->s->line, n.tick, n.serial, &n.seen, n.op.what, work->s->ctx, &n.site};
  oracle_forget(at, bytes, &last);
}

void forget_accesses(CUdeviceptr at, std::size_t bytes) {
  engine_lock lock(the_engine().mu);
  oracle_forget(at, bytes, nullptr);
}

void range_goes_away(CUdeviceptr at, std::size_t bytes, const char *what, bool is_free) {
  if (bytes == 0) return;
  auto &e = the_engine();
  engine_lock lock(e.mu);
  const auto taken = oracle_take(at, bytes, is_free);
  if (taken.empty()) return;
  lock.unlock();
  const call_site site = capture_call_site();
  lock.lock();
  const auto overlaps = [&](const node &n) {
    for (const touch &t : n.op.touches) {
      if (t.at < at + bytes && at < t.at + t.bytes) return true;
    }
    return false;
  };
  for (const auto &r : taken) {
    const CUdeviceptr from = std::max(r.at, at);
    oracle_report(is_free ? HOSTCUDA_USE_AFTER_FREE : HOSTCUDA_USE_AFTER_UNMAP, from,
                  std::min(r.at + r.bytes, at + bytes) - from, r.what, r.site, what, site);
  }
  // Drop pending work first, then wait for running work. A free waits for blocking streams anyway,
  // so their work runs.
  std::vector<instant> running;
  const auto active = e.active;
  for (const auto &s : active) {
    if (is_free && s->blocking()) continue;
    bool woken = false;
    for (const auto &n : s->queue) {
      if (!overlaps(*n)) continue;
      if (!n->in_body) {
        n->discard = true;
        woken = true;
      } else if (this_threads_work() == nullptr || this_threads_work()->n != n.get()) {
        running.emplace_back(s->line, n->tick);
      }
    }
    if (woken) rouse(s);
  }
  if (current_settings().strict) {
    for (const auto &r : taken) poison(lock, r.ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  for (const auto &[line, tick] : running) wait_for(lock, line, tick);
}

}  // namespace hostcuda
