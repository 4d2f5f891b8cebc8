#include "hostcuda/src/memory/reclaimer.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace hostcuda {
namespace {

// Pause between jobs. munmap takes the kernel's lock of the address space, and a thread that takes
// it again at once passes the waiting threads (for up to 4 ms each time).
constexpr std::chrono::microseconds pause_between_jobs(50);

struct reclaim_queue {
  std::mutex mutex;
  std::condition_variable wake, done, hurry;
  std::deque<std::function<void()>> jobs;
  std::uint64_t asked = 0, finished = 0;
  unsigned waiting = 0;  // threads in finish_later()
  bool started = false;
};

// Never destroyed, because the thread outlives static objects.
reclaim_queue &the_queue() {
  static reclaim_queue *const w = new reclaim_queue;
  return *w;
}

void run_jobs() {
  reclaim_queue &w = the_queue();
  std::unique_lock<std::mutex> lock(w.mutex);
  for (;;) {
    w.wake.wait(lock, [&] { return !w.jobs.empty(); });
    const std::function<void()> job = std::move(w.jobs.front());
    w.jobs.pop_front();
    lock.unlock();
    job();
    lock.lock();
    ++w.finished;
    w.done.notify_all();
    w.hurry.wait_for(lock, pause_between_jobs, [&] { return w.waiting != 0; });
  }
}

}  // namespace

void do_later(std::function<void()> job) {
  reclaim_queue &w = the_queue();
  const std::lock_guard<std::mutex> lock(w.mutex);
  w.jobs.push_back(std::move(job));
  ++w.asked;
  if (!w.started) {
    w.started = true;
    std::thread(run_jobs).detach();
  }
  w.wake.notify_one();
}

void finish_later() {
  reclaim_queue &w = the_queue();
  std::unique_lock<std::mutex> lock(w.mutex);
  const std::uint64_t until = w.asked;
  ++w.waiting;
  w.hurry.notify_one();
  w.done.wait(lock, [&] { return w.finished >= until; });
  --w.waiting;
}

}  // namespace hostcuda
