// Fault injection: fails every driver call that the allocator makes during random operations of
// several streams on a machine that is nearly full. Afterwards the statistics agree with the
// ledger, all bytes are right, a retry of the failed request succeeds, and no memory leaks.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/allocators/heap_model.h"
#include "tests/support/effort.h"
#include "tests/support/gpu_test.h"
#include "tests/support/hostcuda_control.h"

namespace stillmap::testing {
namespace {

constexpr int codes[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN};

std::string profile() {
  const std::string config = hostcuda_control::config();
  const std::size_t from = config.find('=') + 1;
  return config.substr(from, config.find(',') - from);
}

class heap_faults : public device_test {
 protected:
  void SetUp() override {
    device_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (!on_hostcuda()) GTEST_SKIP() << "needs a driver that can be told to fail";
    pages_move_ = open_device().capabilities().vmm;
    expect_unreturnable();
    profile_ = profile();
  }
  std::string profile_;
  bool pages_move_ = false;
};

// Calls that only look or switch contexts are many and alike.
bool is_common(const std::string &call) {
  return call.rfind("cuCtx", 0) == 0 || call == "cuStreamIsCapturing" || call == "cuEventQuery" ||
         call == "cuThreadExchangeStreamCaptureMode";
}

// One sequence, which moves pages, waits, and is refused; and again for each call in it.
TEST_F(heap_faults, each_call_of_a_sequence_failing_once) {
  op_sequence ops;
  heap_model_outcome plain;
  for (unsigned seed = 3; seed < 60 && (plain.host_waits == 0 || plain.refused == 0); ++seed) {
    ops = generate_heap_ops(seed, 40);
    ops.front() = {"machine", {10, 3}};
    plain = run_heap_model(ops);
    ASSERT_FALSE(plain.failed) << plain.failed->what;
  }
  ASSERT_EQ(plain.pages_moved > 0, pages_move_);
  ASSERT_GT(plain.host_waits, 0u);
  ASSERT_GT(plain.refused, 0u);
  const std::uint64_t step = testing::sweep_stride(9);  // odd, so that calls fail either way
  std::uint64_t points = 0, met = 0, turn = 0;
  for (std::size_t i = 0; i < driver_call_count; ++i) {
    const std::string call = name_of(static_cast<driver_call>(i));
    for (std::uint64_t nth = 1; nth <= plain.calls.calls[i]; nth += is_common(call) ? 7 : 1) {
      for (const int code : codes) {
        if (++turn % step != 0) continue;
        const heap_model_outcome out = run_heap_model(ops, planned_fault{call, nth, code});
        ++points;
        met += out.fired ? 1 : 0;
        ASSERT_FALSE(out.failed) << call << " #" << nth << " failing with " << code
                                 << ", after operation " << out.failed->at << ": "
                                 << out.failed->what << "\n"
                                 << to_text(ops);
      }
    }
  }
  EXPECT_GT(met, points * 9 / 10) << "of " << points;
  std::printf(
      "note: allocator faults on %s: %llu calls of one sequence failed, one at a time; nothing "
      "leaked\n",
      profile_.c_str(), static_cast<unsigned long long>(met));
}

// Many sequences, and calls failing in nearly every operation of them.
TEST_F(heap_faults, calls_failing_all_the_time) {
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds_of_run(3));
  driver_counts made;
  fault_tally sum;
  std::size_t sequences = 0;
  // Each function that is called often enough to be met has to have failed both ways.
  const auto not_met = [&]() -> std::string {
    for (std::size_t i = 0; i < driver_call_count; ++i) {
      if (made.calls[i] < 3000) continue;
      for (const int code : codes) {
        const std::string call = name_of(static_cast<driver_call>(i));
        if (sum.met[{call, code}] == 0) return call + " with " + std::to_string(code);
      }
    }
    return "";
  };
  // A slow build gets less far in that time, and chance decides which calls are met first.
  constexpr std::size_t least = 6, most = 100;
  for (std::uint64_t seed = seed_of_run(1);
       std::chrono::steady_clock::now() < until || sequences < least ||
       (sequences < most && !not_met().empty());
       ++seed, ++sequences) {
    op_sequence ops = generate_heap_ops(seed, 600);
    ops.front() = {"machine", {10 + 2 * (seed % 6), seed}};
    if (seed % 3 == 0) ops = generate_heap_loop(seed, 10);  // its streams lend each other pages
    const heap_model_outcome plain = run_heap_model(ops);
    ASSERT_FALSE(plain.failed) << plain.failed->what;
    steady_faults faults;
    faults.seed = seed;
    for (std::size_t i = 0; i < driver_call_count; ++i) {
      made.calls[i] += plain.calls.calls[i];
      if (plain.calls.calls[i] != 0) {
        faults.calls.emplace_back(name_of(static_cast<driver_call>(i)));
      }
    }
    const heap_model_outcome out = run_heap_model(ops, faults);
    ASSERT_FALSE(out.failed) << "seed " << seed << ", after operation " << out.failed->at << ": "
                             << out.failed->what << "\n"
                             << to_text(ops);
    sum.said += out.faults.said;
    sum.served += out.faults.served;
    for (const auto &[point, n] : out.faults.met) sum.met[point] += n;
  }
  EXPECT_EQ(not_met(), "") << "in " << sequences << " sequences";
  EXPECT_GT(sum.said, 0u);
  EXPECT_GT(sum.served, 0u);
  std::printf(
      "note: allocator faults on %s: %llu more in %zu random sequences: %llu operations refused "
      "and "
      "had later, %llu served all the same; nothing leaked\n",
      profile_.c_str(), static_cast<unsigned long long>(sum.said + sum.served), sequences,
      static_cast<unsigned long long>(sum.said), static_cast<unsigned long long>(sum.served));
}

}  // namespace
}  // namespace stillmap::testing
