// Tasks in processes of their own that share one device: their peaks do not fit into it together.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/allocators/shared_quota.h"
#include "stillmap/checkpoint/suspend/evictable_memory.h"
#include "tests/support/buffer_test.h"
#include "tests/support/gpu_test.h"
#include "tests/support/unique_name.h"
#include "tests/system/sharing/task_process.h"

namespace stillmap {
namespace {

using namespace literals;
using checkpoint::evictable_memory;
using testing::report_and_end;
using testing::shared_name;
using testing::task_process;
using testing::task_role;

// One task: weights that stay, and are evictable between its phases, and steps whose memory comes and goes.
struct task_plan {
  std::size_t weights = 12_MiB, peak = 52_MiB;
  int phases = 10, steps = 5;
  bool reclaim = true;
};

class sharing_tasks : public testing::buffer_test {
 protected:
  static constexpr int tasks = 8;
  static constexpr const char *machine = "memory=256M";  // half of what the peaks add up to

  // In the process of a task.
  void run_task(const task_plan &plan) {
    const auto quota =
        shared_quota::open("/dev/shm/" + shared_name() + ".quota",
                           {.limit = 256_MiB,
                            .timeout = std::chrono::milliseconds(plan.reclaim ? 60'000 : 0),
                            .device = dev()});
    if (!quota) report_and_end("failed: " + quota.error().message());
    if (plan.reclaim) {
      if (const auto started = (*quota)->start_thread(); !started) {
        report_and_end("failed: " + started.error().message());
      }
    }
    const std::string done = work(plan, *quota);
    const quota_wait_stats n = (*quota)->stats()->waits;
    std::vector<std::chrono::nanoseconds> waits = n.recent;
    std::sort(waits.begin(), waits.end());
    const auto at = [&](double part) {
      return waits.empty() ? 0.0
                           : std::chrono::duration<double, std::milli>(
                                 waits[static_cast<std::size_t>(
                                     part * static_cast<double>(waits.size() - 1))])
                                 .count();
    };
    std::ostringstream line;
    line << done << " waits " << n.waits << " busy " << n.busy << " p50 " << at(0.5) << " p99 "
         << at(0.99) << " max " << std::chrono::duration<double, std::milli>(n.longest).count()
         << " cached " << (n.given[0] >> 20) << " evictable " << (n.given[1] >> 20);
    report_and_end(line.str());
  }

  std::string work(const task_plan &plan, const std::shared_ptr<shared_quota> &quota) {
    const unsigned seed = static_cast<unsigned>(std::stoi(task_role()));
    std::mt19937 random(seed);
    const auto own = page_pool::create(dev(), {.keep_free = 0, .quota = quota});
    if (!own) return "failed: " + own.error().message();
    // The weights wait for room like everything else.
    if (const status room = quota->make_room(plan.weights); plan.reclaim && !room) {
      return "failed: " + room.error().message();
    }
    auto weights = growable_buffer::create(dev(), {.tag = "weights", .pools = {*own}});
    if (!weights) return "failed: " + weights.error().message();
    const status grown = weights->resize(plan.weights);
    quota->end_room();
    if (!grown) return "failed: " + grown.error().message();
    const auto contents = testing::pattern(plan.weights, seed);
    testing::put(dev(), weights->address(), contents);
    auto evictable = evictable_memory::create(dev(), "weights", quota);
    if (plan.reclaim && !evictable) return "failed: " + evictable.error().message();
    const auto heap = caching_allocator::create(dev(), {.quota = quota});
    if (!heap) return "failed: " + heap.error().message();
    const stream s = make_stream();
    for (int phase = 0; phase < plan.phases; ++phase) {
      if (plan.reclaim) {
        if (const status in = (*evictable)->enter(); !in) return "failed: " + in.error().message();
      }
      if (!testing::holds(dev(), weights->address(), plan.weights, seed)) return "failed: bytes";
      for (int step = 0; step < plan.steps; ++step) {
        if (const std::string wrong = run_step(plan, **heap, s, random); !wrong.empty()) {
          return "failed: " + wrong;
        }
      }
      if (plan.reclaim) (*evictable)->leave();
      if (!quota->poll()) return "failed: poll";
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
    }
    if (plan.reclaim) {
      if (const status in = (*evictable)->enter(); !in) return "failed: " + in.error().message();
    }
    if (!testing::holds(dev(), weights->address(), plan.weights, seed)) return "failed: bytes";
    std::ostringstream out;
    out << "done evictions " << (plan.reclaim ? (*evictable)->stats().evictions : 0);
    if (plan.reclaim) (*evictable)->leave();
    return out.str();
  }

  // All memory of a step is asked for at once: nobody holds a part and waits for the rest.
  static std::string run_step(const task_plan &plan, caching_allocator &heap, const stream &s,
                              std::mt19937 &random) {
    std::vector<void *> blocks;
    std::size_t live = 0;
    const std::size_t wanted = plan.peak / 2 + random() % (plan.peak / 2) / 2_MiB * 2_MiB;
    if (plan.reclaim) {
      if (const status begun = heap.begin_step(wanted); !begun) return begun.error().message();
    }
    std::string wrong;
    while (wrong.empty() && live < wanted) {
      const std::size_t bytes = std::min<std::size_t>(wanted - live, (1 + random() % 4) * 2_MiB);
      const auto block = heap.allocate(bytes, s);
      if (!block) wrong = block.error().message();
      if (block) blocks.push_back(*block);
      live += bytes;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    for (void *const block : blocks) {
      if (!heap.free(block)) wrong = "free";
    }
    if (plan.reclaim) heap.end_step();
    return wrong;
  }

  std::vector<std::string> run_all(const char *which, bool at_once) {
    const std::string name = testing::unique_name(std::string("stillmap-sharing-") + which);
    std::vector<std::string> out;
    std::deque<task_process> running;
    for (int i = 0; i < tasks; ++i) {
      running.emplace_back(std::to_string(i + 1), name, machine);
      if (!at_once) out.push_back(running.back().report());
    }
    if (at_once) {
      for (task_process &t : running) out.push_back(t.report());
    }
    EXPECT_TRUE(shared_quota::remove("/dev/shm/" + name + ".quota"));
    // The tasks end without a word to the simulator, whose file the next machine of the name would use.
    std::filesystem::remove("/dev/shm/hostcuda." + std::to_string(::getuid()) + '.' + name);
    return out;
  }
};

TEST_F(sharing_tasks, whose_peaks_are_twice_the_device_run_to_their_end) {
  STILLMAP_NEEDS_VMM();
  if (!task_role().empty()) run_task({});
  const auto began = std::chrono::steady_clock::now();
  const auto reports = run_all("reclaim", true);
  const auto took = std::chrono::steady_clock::now() - began;
  for (const std::string &r : reports) {
    EXPECT_TRUE(r.starts_with("done")) << r;
    std::printf("note: %s\n", r.c_str());
  }
  std::printf("note: all at once %.2f s\n", std::chrono::duration<double>(took).count());
}

TEST_F(sharing_tasks, fail_where_nobody_gives_memory_back) {
  STILLMAP_NEEDS_VMM();
  if (!task_role().empty()) run_task({.reclaim = false});
  const auto reports = run_all("none", true);
  EXPECT_TRUE(std::any_of(reports.begin(), reports.end(),
                          [](const std::string &r) { return r.starts_with("failed"); }));
}

TEST_F(sharing_tasks, one_after_another_need_nobody) {
  STILLMAP_NEEDS_VMM();
  if (!task_role().empty()) run_task({});
  const auto began = std::chrono::steady_clock::now();
  for (const std::string &r : run_all("alone", false)) {
    EXPECT_TRUE(r.starts_with("done evictions 0")) << r;
  }
  std::printf("note: one after another %.2f s\n",
              std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
}

}  // namespace
}  // namespace stillmap
