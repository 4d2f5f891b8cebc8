// Threads that call at once, each with memory of its own.
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <thread>

#include "bench/costs/life.h"
#include "bench/costs/parts.h"
#include "stillmap/vmm/context.h"

namespace stillmap::costs {
namespace {

struct caller {
  call_times times;
  status done;
  std::size_t lives = 0;
};

// Each goes on until all have enough: those that end sooner would leave the others alone.
void call(const machine &m, const time_left &left, int of, std::barrier<> &start,
          std::atomic<int> &enough, caller &me) {
  const context_guard guard(m.drv(), m.context());
  call_times first;
  me.done = guard.entered() ? live_once(m, m.page(), first) : guard.entered();
  start.arrive_and_wait();
  bool counted = false;
  while (enough.load() < of) {
    if (!counted && (!me.done || !left.more(me.lives))) {
      counted = true;
      ++enough;
    }
    if (me.done) {
      me.done = live_once(m, m.page(), me.times);
      ++me.lives;
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace

void measure_threads(const machine &m, time_left left, bool, table &out) {
  const int counts[] = {1, 2, 4, 8};
  double to_do = std::size(counts), alone = 0;
  for (const int n : counts) {
    const time_left now = left.share(1 / to_do--);
    std::vector<caller> callers(static_cast<std::size_t>(n));
    std::vector<std::thread> threads;
    std::barrier start(n + 1);
    std::atomic<int> enough = 0;
    for (caller &c : callers) {
      threads.emplace_back([&, n] { call(m, now, n, start, enough, c); });
    }
    start.arrive_and_wait();
    const auto began = std::chrono::steady_clock::now();
    for (std::thread &t : threads) t.join();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    call_times all;
    double lives = 0;
    status done;
    for (const caller &c : callers) {
      all.add(c.times);
      lives += static_cast<double>(c.lives);
      if (!c.done) done = c.done;
    }
    out.add(all, against::threads, n, n);
    if (!done) return out.refused(done.error(), against::threads, n, n);
    const double rate = lives / took.count();
    if (n == 1) alone = rate;
    if (n == 1 || alone <= 0) continue;
    char gain[32];
    std::snprintf(gain, sizeof gain, "%.2f", rate / alone);
    out.add_fact("threads.gain." + std::to_string(n), rate / alone,
                 std::to_string(n) +
                     " threads at once reserve, create, map, allow, unmap and "
                     "release " +
                     gain + " times as much as one");
  }
}

}  // namespace stillmap::costs
