// Two inference engines in processes of their own whose KV caches grow at once on one device: 411 requests each, as in
// kvcached's issue 455, in which requests failed where nobody divided the memory. docs/results/sharing.md
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/buffer_test.h"
#include "tests/support/unique_name.h"
#include "tests/system/sharing/kv_engine.h"
#include "tests/system/sharing/task_process.h"

namespace stillmap {
namespace {

using namespace literals;
using testing::kv_engine;
using testing::kv_engine_plan;
using testing::report_and_end;
using testing::shared_name;
using testing::task_process;
using testing::task_role;

class kv_engines : public testing::buffer_test {
 protected:
  static constexpr std::size_t requests = 411, device_pages = 256;
  // That many pages of 2 MiB, of which only what is touched takes time.
  static constexpr const char *machine = "memory=512M,lazy";
  static constexpr std::chrono::milliseconds timeout{100};

  // In the process of an engine, whose role is its number. `halves`: each has half of the device for itself.
  void run_engine(bool halves, std::int32_t priority = 0) {
    const int number = std::stoi(task_role());
    const std::string file = "/dev/shm/" + shared_name() + ".quota";
    const auto both = shared_quota::open(file + ".start", {.limit = 1});
    const auto quota = shared_quota::open(
        halves ? file + std::to_string(number) : file,
        {.limit = device_pages * page() / (halves ? 2 : 1),
         .terms = {.minimum = kv_engine_plan::max_request * page(), .priority = priority},
         .timeout = timeout,
         .device = halves ? std::optional<device>() : dev()});
    if (!both || !quota) report_and_end("failed: the quota");
    // They begin together.
    const auto patience = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while ((*both)->stats()->participants.size() < 2) {
      if (std::chrono::steady_clock::now() > patience)
        report_and_end("failed: the other is missing");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const auto began = std::chrono::steady_clock::now();
    kv_engine engine(dev(), *quota, testing::kv_requests(requests, 100 + number));
    const std::string wrong = engine.run();
    if (!wrong.empty()) report_and_end("failed: " + wrong);
    report_and_end(
        line_of(engine.stats(), *(*quota)->stats(), std::chrono::steady_clock::now() - began));
  }

  static std::string line_of(const testing::kv_engine_stats &s, const quota_stats &q,
                             std::chrono::nanoseconds took) {
    using ms = std::chrono::duration<double, std::milli>;
    const quota_wait_stats &w = q.waits;
    std::vector<std::chrono::nanoseconds> waits = w.recent;
    std::sort(waits.begin(), waits.end());
    const auto at = [&](std::size_t percent) {
      return waits.empty() ? 0.0 : ms(waits[(waits.size() - 1) * percent / 100]).count();
    };
    std::ostringstream out;
    out << "done " << s.completed << " tokens " << s.generated << " waits " << w.waits
        << " overtaken " << w.most_overtaken << " in vain " << w.busy << " p50 " << at(50)
        << " p99 " << at(99) << " max " << ms(w.longest).count() << " ms, steps " << s.steps
        << " hits " << s.hits << " paused " << s.paused << " preempted " << s.preempted
        << " dropped " << s.dropped << " given " << s.given << " peak MiB " << (s.peak >> 20)
        << " outside MiB " << (q.outside >> 20) << " device "
        << static_cast<double>(s.device_time.count()) / 1e6 << " s, all " << ms(took).count() / 1000
        << " s";
    return out.str();
  }

  struct engine_report {
    std::string line;
    std::uint64_t completed = 0, tokens = 0, waits = 0, overtaken = 0;
  };
  std::vector<engine_report> run_both(const char *which) {
    const std::string name = testing::unique_name(std::string("stillmap-kv-") + which);
    std::deque<task_process> running;
    for (int i = 1; i <= 2; ++i) running.emplace_back(std::to_string(i), name, machine);
    std::vector<engine_report> out;
    for (task_process &t : running) {
      engine_report r{.line = t.report()};
      std::string word;
      std::istringstream in(r.line);
      in >> word >> r.completed >> word >> r.tokens >> word >> r.waits >> word >> r.overtaken;
      std::printf("note: %s: %s\n", which, r.line.c_str());
      out.push_back(r);
    }
    for (const char *const suffix : {".quota", ".quota1", ".quota2", ".quota.start"}) {
      const auto left = shared_quota::stats_of("/dev/shm/" + name + suffix);
      if (!left) continue;
      EXPECT_EQ(left->reserved, 0u) << suffix;
      EXPECT_TRUE(shared_quota::remove("/dev/shm/" + name + suffix));
    }
    std::filesystem::remove("/dev/shm/hostcuda." + std::to_string(::getuid()) + '.' + name);
    return out;
  }
  static void expect_all_done(const std::vector<engine_report> &reports) {
    for (std::size_t i = 0; i < reports.size(); ++i) {
      EXPECT_TRUE(reports[i].line.starts_with("done")) << reports[i].line;
      EXPECT_EQ(reports[i].completed, requests);
      const auto all = testing::kv_requests(requests, 101 + static_cast<unsigned>(i));
      EXPECT_EQ(reports[i].tokens, std::accumulate(all.begin(), all.end(), std::uint64_t{0},
                                                   [](std::uint64_t sum, const auto &r) {
                                                     return sum + r.generates;
                                                   }));
    }
  }
};

TEST_F(kv_engines, that_grow_at_once_serve_all_822_requests) {
  STILLMAP_NEEDS_VMM();
  if (!task_role().empty()) run_engine(false);
  const auto reports = run_both("shared");
  expect_all_done(reports);
  EXPECT_GT(reports[0].waits + reports[1].waits, 0u) << "there was enough for both";
  for (const auto &r : reports) EXPECT_EQ(r.overtaken, 0u) << "first come, first served";
}

TEST_F(kv_engines, are_overtaken_by_a_higher_priority_16_times_at_most) {
  STILLMAP_NEEDS_VMM();
  if (!task_role().empty()) run_engine(false, task_role() == "1" ? 1 : 0);
  const auto reports = run_both("priorities");
  expect_all_done(reports);
  EXPECT_EQ(reports[0].overtaken, 0u);
  EXPECT_LE(reports[1].overtaken, 16u);
}

// What the others are compared with.
TEST_F(kv_engines, with_half_of_the_device_each) {
  STILLMAP_NEEDS_VMM();
  if (!task_role().empty()) run_engine(true);
  expect_all_done(run_both("halves"));
}

}  // namespace
}  // namespace stillmap
