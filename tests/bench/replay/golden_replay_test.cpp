// Compares what whole programs cost with Stillmap, in driver calls and pages, with
// tests/bench/replay/golden: with all of the device's memory, with little more than they need, and with
// the least. Exact on any machine: one thread, no work on the streams, and no chunks, which lie where the
// driver puts them.
// STILLMAP_UPDATE_GOLDEN=1 rewrites the file.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <sstream>

#include "bench/replay/replay.h"
#include "bench/replay/simulator.h"
#include "tests/support/buffer_test.h"
#include "tests/support/golden.h"

namespace stillmap::testing {
namespace {

using namespace stillmap::literals;
using namespace stillmap::replay;

// Writes a trace, and knows which blocks live.
class program_writer {
 public:
  explicit program_writer(unsigned seed) : dice_(seed), out_("golden") {}
  std::uint64_t allocate(std::uint64_t bytes, std::uint32_t on = 0) {
    out_.allocate(next_, bytes, on);
    return next_++;
  }
  void free(std::uint64_t id) { out_.free(id); }
  void iteration() { out_.iteration(); }
  std::uint64_t roll(std::uint64_t below) { return dice_() % below; }
  // One of the blocks, which leaves the list.
  std::uint64_t take(std::vector<std::uint64_t> &live) {
    const std::size_t at = roll(live.size());
    const std::uint64_t id = live[at];
    live[at] = live.back();
    live.pop_back();
    return id;
  }
  std::string text() { return out_.take(); }

 private:
  std::mt19937_64 dice_;
  trace_writer out_;
  std::uint64_t next_ = 0;
};

// A training step: each layer keeps its activations until the backward pass. `longest` is what the
// length of an iteration may be, in steps of 64; with one length it repeats exactly.
std::string training(unsigned seed, std::uint64_t longest, int evaluated_every) {
  program_writer p(seed);
  for (int layer = 0; layer < 12; ++layer) p.allocate(9_MiB + 4_KiB * p.roll(50));
  for (int iteration = 0; iteration < 12; ++iteration) {
    const std::uint64_t length = 64 * (longest - p.roll(std::min<std::uint64_t>(longest, 8)));
    const bool evaluates = evaluated_every != 0 && iteration % evaluated_every == 1;
    std::vector<std::uint64_t> kept;
    for (std::uint64_t layer = 0; layer < 12; ++layer) {
      const std::uint64_t scratch = p.allocate(length * 16_KiB + layer * 512);
      const std::uint64_t statistics = p.allocate(length * 16);
      const std::uint64_t made = p.allocate(length * 6_KiB);
      p.free(scratch);
      if (evaluates) {
        p.free(made);
        p.free(statistics);
      } else {
        kept.push_back(made);
        kept.push_back(statistics);
      }
    }
    for (; !kept.empty(); kept.pop_back()) {
      const std::uint64_t gradient = p.allocate(length * 8_KiB);
      p.free(kept.back());
      p.free(gradient);
    }
    p.iteration();
  }
  return p.text();
}

std::string random_sizes(unsigned seed, std::uint64_t largest, std::size_t most_live,
                         std::uint32_t streams) {
  program_writer p(seed);
  std::vector<std::uint64_t> live;
  for (int iteration = 0; iteration < 5; ++iteration) {
    for (int i = 0; i < 600; ++i) {
      // First, by every compiler: the recorded costs depend on the order of the two.
      const auto on = static_cast<std::uint32_t>(p.roll(streams));
      live.push_back(p.allocate(1 + p.roll(largest), on));
      while (live.size() > most_live) p.free(p.take(live));
    }
    p.iteration();
  }
  for (const std::uint64_t id : live) p.free(id);
  return p.text();
}

// Small blocks of which some stay, between large ones that come and go.
std::string small_and_large(unsigned seed) {
  program_writer p(seed);
  std::vector<std::uint64_t> live, large;
  for (int iteration = 0; iteration < 6; ++iteration) {
    for (int i = 0; i < 2000; ++i) {
      const std::uint64_t id = p.allocate(1 + p.roll(i % 9 == 0 ? 200'000 : 8'000));
      if (i % 40 != 0) live.push_back(id);
      if (live.size() > 700) p.free(p.take(live));
      if (i % 25 == 0) large.push_back(p.allocate(1_MiB + p.roll(12_MiB)));
      if (large.size() > 12) p.free(p.take(large));
    }
    p.iteration();
  }
  return p.text();
}

// Vectors that grow by half of their size.
std::string vectors(unsigned seed) {
  program_writer p(seed);
  for (int iteration = 0; iteration < 8; ++iteration) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> all;  // block, bytes
    for (int i = 0; i < 6; ++i) {
      const std::uint64_t bytes = 3_MiB + p.roll(1_MiB);
      all.emplace_back(p.allocate(bytes), bytes);
    }
    for (int i = 0; i < 36; ++i) {
      auto &[block, bytes] = all[p.roll(all.size())];
      if (bytes > 60_MiB) continue;
      bytes += bytes / 2;
      const std::uint64_t grown = p.allocate(bytes);
      p.free(block);
      block = grown;
    }
    for (const auto &[block, bytes] : all) p.free(block);
    p.iteration();
  }
  return p.text();
}

std::map<std::string, std::string> all_programs() {
  return {
      {"a training loop", training(1, 24, 0)},
      {"a training loop with evaluations", training(2, 24, 4)},
      {"training with lengths that vary", training(3, 60, 0)},
      {"random sizes up to 100 KiB", random_sizes(4, 100'000, 900, 1)},
      {"random sizes up to 8 MiB", random_sizes(5, 8_MiB, 150, 1)},
      {"random sizes up to 3 MiB on three streams", random_sizes(6, 3_MiB, 90, 3)},
      {"small blocks that stay among large ones", small_and_large(7)},
      {"vectors that grow", vectors(8)},
  };
}

class golden_replay : public device_test {
 protected:
  void SetUp() override {
    device_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    ASSERT_DONE(become_machine(driver(), "h200", false));
    device_.emplace(open_device());
  }
  void TearDown() override {
    device_.reset();
    device_test::TearDown();
  }

  static replay_options options() {
    replay_options o;
    o.kind = *find_target("stillmap");
    return o;
  }
  replay_result replayed(const replay_plan &plan, std::optional<std::uint64_t> capacity) {
    replay_options o = options();
    o.capacity = capacity;
    const auto r = run(*device_, plan, o);
    EXPECT_TRUE(r) << r.error().message();
    return r ? *r : replay_result();
  }

  static void note(std::ostream &out, const char *memory, const replay_result &r) {
    out << "  " << memory << ": ";
    if (r.oom) {
      out << "out of memory\n";
      return;
    }
    out << r.peak_committed_bytes / 2_MiB << " pages, " << r.moved_bytes / 2_MiB << " moved";
    for (const bool last : {false, true}) {
      const driver_counts &of = last ? r.last_iteration : r.calls;
      out << (last ? "\n    in the last iteration:" : "\n    in all:");
      if (of.total() == 0) out << " nothing";
      for (std::size_t i = 0; i < driver_call_count; ++i) {
        if (of.calls[i] == 0) continue;
        out << ' ' << name_of(static_cast<driver_call>(i)) << ' ' << of.calls[i];
      }
    }
    out << '\n';
  }

  void note_all(std::ostream &out, const std::string &name, const std::string &text) {
    const auto trace = read_trace(text);
    ASSERT_TRUE(trace) << trace.error().message();
    const auto plan = plan_replay(*trace, std::nullopt);
    ASSERT_TRUE(plan) << plan.error().message();
    out << name << ", " << (plan->peak_live_bytes + 2_MiB - 1) / 2_MiB << " pages live\n";
    const replay_result ample = replayed(*plan, std::nullopt);
    note(out, "all memory", ample);
    const auto little =
        static_cast<std::uint64_t>(1.1 * static_cast<double>(plan->peak_live_bytes));
    note(out, "1.1 times what lives", replayed(*plan, round_up(little, 2_MiB)));
    const auto least = find_min_capacity(*device_, *plan, options(), ample.peak_committed_bytes);
    ASSERT_TRUE(least) << least.error().message();
    note(out, "the least", replayed(*plan, *least));
  }

  std::optional<device> device_;
};

TEST_F(golden_replay, programs_cost_what_they_did) {
  std::ostringstream out;
  for (const auto &[name, text] : all_programs())
    ASSERT_NO_FATAL_FAILURE(note_all(out, name, text));
  expect_golden("tests/bench/replay/golden/calls.txt", out.str());
}

// Regression: up to five times the memory, where segments took twice, on a device that cannot map pages.
TEST_F(golden_replay, chunks_take_about_as_much_as_segments) {
  device_.reset();
  ASSERT_DONE(become_machine(driver(), "vgpu-no-vmm", false));
  device_.emplace(open_device());
  for (const auto &[name, text] : all_programs()) {
    const auto plan = plan_replay(*read_trace(text), std::nullopt);
    ASSERT_TRUE(plan) << plan.error().message();
    const auto taken = [&](const char *allocator) {
      replay_options o;
      o.kind = *find_target(allocator);
      const auto r = run(*device_, *plan, o);
      EXPECT_TRUE(r && !r->oom) << allocator;
      return r ? r->peak_committed_bytes : 0;
    };
    const std::uint64_t ours = taken("stillmap"), segments = taken("segments");
    EXPECT_LE(ours, segments + segments / 10 + 4_MiB) << name;
  }
}

}  // namespace
}  // namespace stillmap::testing
