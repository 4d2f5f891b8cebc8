// Threads that call at once, each with memory of its own.
#include <algorithm>
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
  std::chrono::steady_clock::time_point began, ended;
};

// Each goes on until all have enough: those that end sooner would leave the others alone.
void call(const machine &m, life &one, const time_left &left, int of, std::barrier<> &start,
          std::atomic<int> &enough, caller &me) {
  const context_guard guard(m.driver(), m.context());
  me.done = guard.entered();
  own_stream stream;
  if (me.done) {
    auto made = m.create_stream();
    if (made) stream = std::move(*made);
    me.done = outcome(made);
  }
  call_times first;
  if (me.done) me.done = one(m, stream.get(), m.page(), first);
  start.arrive_and_wait();
  me.began = std::chrono::steady_clock::now();
  bool counted = false;
  while (enough.load() < of) {
    if (!counted && (!me.done || !left.more(me.lives))) {
      counted = true;
      ++enough;
    }
    if (me.done) {
      me.done = one(m, stream.get(), m.page(), me.times);
      ++me.lives;
    } else {
      std::this_thread::yield();
    }
  }
  me.ended = std::chrono::steady_clock::now();
}

struct together {
  call_times times;
  status done;
  double per_second = 0;  // lives of all
};

together call_from(const machine &m, life &one, const time_left &left, int n) {
  std::vector<caller> callers(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  std::barrier start(n);
  std::atomic<int> enough = 0;
  for (caller &c : callers) {
    threads.emplace_back([&] { call(m, one, left, n, start, enough, c); });
  }
  for (std::thread &t : threads) t.join();
  together all;
  double lives = 0;
  auto began = callers[0].began, ended = callers[0].ended;
  for (const caller &c : callers) {
    began = std::min(began, c.began);
    ended = std::max(ended, c.ended);
    all.times.add(c.times);
    lives += static_cast<double>(c.lives);
    if (!c.done) all.done = c.done;
  }
  all.per_second = lives / std::max(std::chrono::duration<double>(ended - began).count(), 1e-9);
  return all;
}

void against_threads(const machine &m, const time_left &left, life &one, const char *what,
                     table &out) {
  const int counts[] = {1, 2, 4, 8};
  double to_do = std::size(counts), alone = 0;
  for (const int n : counts) {
    const together all = call_from(m, one, left.share(1 / to_do--), n);
    out.add(all.times, against::threads, n, n);
    if (!all.done) return out.refused(all.done.error(), against::threads, n, n);
    if (n == 1) {
      alone = all.per_second;
      continue;
    }
    char gain[32];
    std::snprintf(gain, sizeof gain, "%.2f", all.per_second / alone);
    out.add_fact(std::string("threads.gain.") + std::to_string(n) + "." + what,
                 all.per_second / alone,
                 std::to_string(n) + " threads at once make and undo " + what + " " + gain +
                     " times as often as one");
  }
}

}  // namespace

void measure_threads(const machine &m, time_left left, bool, table &out) {
  if (m.vmm()) against_threads(m, left.share(0.4), mapped_life, "mapped pages", out);
  against_threads(m, left.share(0.5), plain_life, "memory of cuMemAlloc", out);
  against_threads(m, left, ordered_life, "memory of cuMemAllocAsync", out);
}

}  // namespace stillmap::costs
