#include <algorithm>
#include <chrono>
#include <thread>

#include "hostcuda/src/execution/engine.h"
#include "hostcuda/src/execution/oracle.h"

namespace hostcuda {

engine &the_engine() {
  static auto *const the = new engine;
  return *the;
}

running_work *&this_threads_work() {
  static thread_local running_work *work = nullptr;
  return work;
}

std::uint64_t mix(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  // splitmix64's finaliser over the three words.
  std::uint64_t x = a + 0x9E3779B97F4A7C15u * (b + 1) + 0xD1B54A32D192ED03u * (c + 1);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

namespace {

bool seeded() {
  return current_settings().schedule == schedule_kind::seeded;
}

bool broken(const stream &s) {
  return s.ctx->sticky.load(std::memory_order_acquire) != CUDA_SUCCESS;
}

// Whether an error is sticky: it breaks the context even if the caller waits for the operation.
bool is_fatal(CUresult code) {
  return code == CUDA_ERROR_ILLEGAL_ADDRESS || code == CUDA_ERROR_ASSERT ||
         (code >= CUDA_ERROR_HARDWARE_STACK_ERROR && code <= CUDA_ERROR_LAUNCH_FAILED);
}

CUresult run_body(const std::function<CUresult()> &body) {
  try {
    return body();
  } catch (...) {
    return CUDA_ERROR_LAUNCH_FAILED;  // a host kernel threw an exception: as a trap on a device
  }
}

// Polling interval of a predicate without a notification (a word in memory).
constexpr std::chrono::microseconds poll_interval{50};

void work(std::shared_ptr<stream> s) {
  auto &e = the_engine();
  engine_lock lock(e.mu);
  for (;;) {
    if (s->queue.empty()) {
      if (s->destroyed || e.dropping) break;
      s->wake.wait(lock);
    } else if (s->running != nullptr) {
      s->wake.wait(lock);  // a host thread runs it and wakes this worker afterwards
    } else if (is_ready(*s)) {
      run_head(lock, s);
    } else {
      const node &head = *s->queue.front();
      bool sleeping_on_other = false;
      for (const auto &[line, tick] : head.after) {
        if (line->finished >= tick) continue;
        line->dependents.emplace(tick, s);
        sleeping_on_other = true;
        break;
      }
      if (!sleeping_on_other && !s->held && head.op.ready) {
        s->wake.wait_for(lock, poll_interval);
      } else {
        s->wake.wait(lock);
      }
    }
  }
  s->has_worker = false;
  s.reset();
  if (--e.workers == 0) e.changed.notify_all();
}

void finish(engine_lock &lock, const std::shared_ptr<stream> &s, const std::shared_ptr<node> &n) {
  (void)lock;
  auto &e = the_engine();
  auto &line = *s->line;
  s->running.reset();
  s->queue.pop_front();
  line.finished = n->tick;
  if (!line.waiters.empty() && *line.waiters.begin() <= n->tick) line.done.notify_all();
  auto &waiting = line.dependents;
  while (!waiting.empty() && waiting.begin()->first <= n->tick) {
    waiting.begin()->second->wake.notify_all();
    waiting.erase(waiting.begin());
  }
  if (seeded()) e.changed.notify_all();
  if (!s->queue.empty()) {
    rouse(s);
  } else if (s->destroyed) {
    retire_stream(s);
  }
}

// Runs one stream head, chosen at random. Returns false if none is ready.
bool step(engine_lock &lock) {
  auto &e = the_engine();
  std::vector<const std::shared_ptr<stream> *> ready;
  for (const auto &s : e.active) {
    if (!s->queue.empty() && s->running == nullptr && is_ready(*s)) ready.push_back(&s);
  }
  if (ready.empty()) return false;
  if (e.dice_generation != e.generation) {
    e.dice_generation = e.generation;
    e.dice = mix(current_settings().seed, 7);
  }
  const auto chosen = *ready[e.dice % ready.size()];
  e.dice = mix(e.dice, 1);
  run_head(lock, chosen);
  return true;
}

}  // namespace

bool is_ready(const stream &s) {
  const node &head = *s.queue.front();
  if (broken(s) || the_engine().dropping) return true;  // no body of the context will run
  if (s.held && !head.discard) return false;
  // A discarded operation waits too, because later ones of its stream rely on that.
  for (const auto &[line, tick] : head.after) {
    if (line->finished < tick) return false;
  }
  return head.discard || !head.op.ready || head.op.ready();
}

void rouse(const std::shared_ptr<stream> &s) {
  auto &e = the_engine();
  if (seeded() || s->queue.empty()) {
    e.changed.notify_all();
    return;
  }
  if (s->has_worker) {
    s->wake.notify_one();
    return;
  }
  if (e.dropping) return;
  s->has_worker = true;
  ++e.workers;
  std::thread(work, s).detach();  // process exit does not wait for streams
}

void announce(const std::shared_ptr<stream> &s) {
  if (!s->queue.empty() && (s->queue.size() == 1 || !s->has_worker)) rouse(s);
}

void poison(engine_lock &lock, context *ctx, CUresult code) {
  lock.unlock();
  break_context(ctx, code);
  lock.lock();
  for (const auto &s : the_engine().active) {
    if (s->ctx == ctx) s->wake.notify_all();
  }
  the_engine().changed.notify_all();
}

queue_place take_place(const std::shared_ptr<stream> &s, const vector_clock *waits) {
  queue_place place{++s->line->queued, the_engine().next_serial++, {}};
  const auto follow = [&](const stream &other) {
    const auto &line = other.line;
    if (line->queued > line->known) s->view.join(line, line->queued);
    s->view.join(other.view);
    if (line->finished < line->queued) place.after.emplace_back(line, line->queued);
  };
  if (auto *exec = s->exec; exec != nullptr) {
    // Only what is new: a program may queue thousands of operations on the legacy stream behind
    // hundreds of blocking streams.
    if (s->is_legacy) {
      for (const auto &other : exec->ahead_of_legacy) {
        follow(*other);
        other->ahead = false;
      }
      exec->ahead_of_legacy.clear();
    } else if (s->blocking()) {
      if (const auto last = exec->legacy->line->queued; s->legacy_seen != last) {
        follow(*exec->legacy);
        s->legacy_seen = last;
      }
      if (!s->ahead) {
        s->ahead = true;
        exec->ahead_of_legacy.push_back(s);
      }
    }
  }
  if (waits != nullptr) {
    s->view.join(*waits);
    for (const auto &[line, tick] : waits->entries()) {
      if (line != s->line && line->finished < tick) place.after.emplace_back(line, tick);
    }
  }
  return place;
}

bool nothing_precedes(const stream &s, const queue_place &place) {
  return s.queue.empty() && !s.held && !broken(s) && place.after.empty() &&
         current_settings().schedule == schedule_kind::threads;
}

std::shared_ptr<node> post_at(const std::shared_ptr<stream> &s, operation &&op, queue_place &&place,
                              const call_site *site) {
  auto n = std::make_shared<node>();
  n->op = std::move(op);
  n->tick = place.tick;
  n->serial = place.serial;
  n->after = std::move(place.after);
  if (site != nullptr) n->site = *site;
  if (n->op.type == CU_GRAPH_NODE_TYPE_KERNEL || n->op.type == CU_GRAPH_NODE_TYPE_GRAPH ||
      n->op.frees) {
    n->seen = s->view;
  }
  s->queue.push_back(n);
  return n;
}

std::shared_ptr<node> post(engine_lock &lock, const std::shared_ptr<stream> &s, operation &&op,
                           const vector_clock *waits, const call_site *site) {
  (void)lock;
  return post_at(s, std::move(op), take_place(s, waits), site);
}

void run_head(engine_lock &lock, const std::shared_ptr<stream> &s) {
  auto &e = the_engine();
  const auto n = s->queue.front();
  s->running = n;
  const auto &settings = current_settings();
  if (settings.schedule == schedule_kind::jitter && settings.jitter_us != 0 && !e.dropping) {
    const auto delay = mix(settings.seed, s->index, n->tick) % (settings.jitter_us + 1);
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(delay));
    lock.lock();
  }
  CUresult status = s->ctx->sticky.load(std::memory_order_acquire);
  if (status == CUDA_SUCCESS && e.dropping) status = CUDA_ERROR_DEINITIALIZED;
  const bool run = status == CUDA_SUCCESS && !n->discard;
  n->in_body = run;
  lock.unlock();

  running_work work{s.get(), n.get(), false};
  auto *&mine = this_threads_work();
  auto *const outer = mine;
  mine = &work;
  CUresult result = run && n->op.body ? run_body(n->op.body) : status;
  if (n->op.after) n->op.after(result);
  mine = outer;
  n->op.body = nullptr;  // destroys the captured objects without the lock
  n->op.after = nullptr;

  lock.lock();
  n->in_body = false;
  if (run && result == CUDA_ERROR_ILLEGAL_ADDRESS && !n->faulted) {
    const touch t = n->op.touches.empty() ? touch{} : n->op.touches.front();
    oracle_report(HOSTCUDA_ACCESS_FAULT, t.at, t.bytes, n->op.what, n->site, n->op.what, n->site);
  }
  n->result = result;
  if (run && result != CUDA_SUCCESS && (!n->op.host_waits || is_fatal(result))) {
    poison(lock, s->ctx, result);
  }
  finish(lock, s, n);
}

void wait_for(engine_lock &lock, const std::shared_ptr<timeline> &line, std::uint64_t tick) {
  auto &e = the_engine();
  if (!seeded()) {
    if (line->finished >= tick) return;
    const auto mine = line->waiters.insert(tick);
    while (line->finished < tick) line->done.wait(lock);
    line->waiters.erase(mine);
    return;
  }
  while (line->finished < tick) {
    // No head is ready: another thread runs it or holds it, or a word in memory must change.
    if (!step(lock)) e.changed.wait_for(lock, poll_interval);
  }
}

void nudge(engine_lock &lock) {
  if (!seeded()) return;
  auto &e = the_engine();
  const auto steps = 1 + mix(e.dice, 2) % 3;
  for (std::uint64_t i = 0; i < steps && step(lock); ++i) {
  }
}

}  // namespace hostcuda
