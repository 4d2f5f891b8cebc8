#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>

#include "stillmap/vmm/base/driver_types.h"
#include "tests/support/effort.h"
#include "tests/system/fault/fixture.h"

namespace stillmap::testing {
namespace {

// Functions that give something back: where one fails, nobody but the sink can be told, and what it
// was to give back stays.
const std::set<std::string> &giving_back() {
  static const std::set<std::string> all = {
      "cuMemRelease", "cuMemAddressFree", "cuMemUnmap", "cuMemFree", "cuMemFreeAsync",
      "cuMemFreeHost", "cuStreamDestroy", "cuEventDestroy", "cuDevicePrimaryCtxRelease",
      // What has to come before.
      "cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuCtxSynchronize",
      "cuEventSynchronize"};
  return all;
}

// Survived by every operation.
const std::set<std::string> &only_said() {
  static const std::set<std::string> all = {
      "cuMemGetInfo",     // how much was free, for the text of another error
      "cuCtxPopCurrent",  // leaving a context after the work is done: the sink is told
      // Giving the thread its mode back: tried once more.
      "cuThreadExchangeStreamCaptureMode",
  };
  return all;
}

struct totals {
  std::map<std::string, std::size_t> points;
  std::size_t twice = 0, lost = 0;
  bool failed = false;
};
totals &all_totals() {
  static totals t;
  return t;
}

class report final : public ::testing::Environment {
  void TearDown() override {
    const totals &t = all_totals();
    if (t.points.empty()) return;
    std::size_t sum = 0;
    for (const auto &[name, n] : t.points) {
      std::printf("[ FAULT    ] %6zu points  %s\n", n, name.c_str());
      sum += n;
    }
    // ./test repeats lines that begin like this.
    std::printf(
        "note: fault sweep on %s: %zu (operation, call) points failed over %zu operations; %s\n",
        simulated_profile().c_str(), sum, t.points.size(),
        t.failed ? "SEE ITS LOG" : "no object changed, nothing leaked");
    if (t.twice + t.lost == 0) return;
    std::printf(
        "note: fault sweep on %s: %zu more with the way back failing too, %zu with the device "
        "lost: "
        "nothing crashed\n",
        simulated_profile().c_str(), t.twice, t.lost);
  }
};
[[maybe_unused]] ::testing::Environment *const reporting =
    ::testing::AddGlobalTestEnvironment(new report);

struct call {
  std::string function;
  std::uint64_t nth;
};

class fault_sweep : public operation_sweep {
 protected:
  void TearDown() override {
    if (HasFailure()) all_totals().failed = true;
    operation_sweep::TearDown();
  }

  std::vector<call> calls_of_operation() {
    const driver_counts spent = learn();
    std::vector<call> out;
    for (std::size_t i = 0; i < driver_call_count; ++i) {
      for (std::uint64_t n = 1; n <= spent.calls[i]; ++n) {
        out.push_back({name_of(static_cast<driver_call>(i)), n});
      }
    }
    return out;
  }

  bool may_survive(const std::string &function) const {
    return only_said().contains(function) || op().may_survive.contains(function);
  }

  // False: the call was not made this time.
  bool fail_once(const call &c, CUresult code) {
    SCOPED_TRACE(op().name + ", " + c.function + " #" + std::to_string(c.nth) + " failing with " +
                 std::to_string(code));
    std::unique_ptr<bench> w = set();
    const std::uint64_t told = background_error_count();
    hostcuda_control::faults_fired();
    hostcuda_control::fail(c.function.c_str(), c.nth, code);
    const status ran = op().run(*w);
    hostcuda_control::stop_failing(c.function.c_str());
    if (hostcuda_control::faults_fired() == 0) {
      drop(w);
      return false;
    }
    ++all_totals().points[op().name];
    const bool reported = background_error_count() != told;
    EXPECT_TRUE(!reported || giving_back().contains(c.function) ||
                op().may_tell.contains(c.function))
        << "the sink was told";
    if (ran) {
      EXPECT_TRUE(may_survive(c.function) || (reported && giving_back().contains(c.function)))
          << "it succeeded";
    } else {
      EXPECT_TRUE(names_what_failed(op(), ran.error()));
      EXPECT_EQ(w->observe(), before_) << "after " << ran.error().message();
      const status again = op().run(*w);
      EXPECT_TRUE(again) << "tried again: " << (again ? "" : again.error().message());
    }
    if (op().compare_after) {
      EXPECT_EQ(w->observe(), after_) << "in the end";
    }
    drop(w);
    if (counted() == baseline_) return true;
    EXPECT_TRUE(reported) << "leaked without telling anybody:\n" << counted() << baseline_;
    start();
    return true;
  }

  // The way back is refused as well, or the device is gone: whatever happens, no crash, and what
  // comes back is an error.
  void fail_on(const char *function, std::uint64_t nth, CUresult code) {
    SCOPED_TRACE(op().name + ", " + (function != nullptr ? function : "any call") + " from #" +
                 std::to_string(nth) + " on failing with " + std::to_string(code));
    std::unique_ptr<bench> w = set();
    hostcuda_control::fail_from(function, nth, code);
    const status ran = op().run(*w);
    if (!ran) {
      EXPECT_TRUE(names_what_failed(op(), ran.error()));
    }
    if (!ran && code == CUDA_ERROR_ILLEGAL_ADDRESS) {
      EXPECT_TRUE(ran.error().is(errc::device_lost)) << ran.error().message();
    }
    if (code == CUDA_ERROR_ILLEGAL_ADDRESS) {
      // All of it goes while nothing works.
      hostcuda_control::occupy(0, 0);
      w.reset();
      device_.reset();
    }
    hostcuda_control::stop_failing(function);
    if (w) {
      [[maybe_unused]] const status again = op().run(*w);
      drop(w);
      if (counted() == baseline_) return;
    }
    start();
  }

  // What happens after the first failure does not depend on the machine: two of them will do.
  static bool looks_further() {
    return (simulated_profile() == "h200" || simulated_profile() == "vgpu-no-vmm") &&
           sanitizer() != "thread";
  }

  // One of so many points is tried. Sanitizers look for what the code does wrong, not for what it
  // leaves undone, and the sweep runs one thread: the thread sanitizer, the slowest, sees a sample.
  static std::size_t stride() {
    if (sanitizer().empty()) return 1;
    if (sanitizer() == "thread") return 16;
    return looks_further() ? 13 : 26;
  }
};

TEST_P(fault_sweep, every_call_failing) {
  const std::vector<call> calls = calls_of_operation();
  ASSERT_FALSE(calls.empty()) << "it makes no driver call";
  for (std::size_t k = 0; k < calls.size(); ++k) {
    const call &c = calls[k];
    for (const CUresult code : {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN}) {
      // With a stride that three does not divide, some calls fail one way and some the other way.
      const std::size_t point = 3 * k + (code == CUDA_ERROR_UNKNOWN ? 1 : 0);
      if (point % stride() != 0) continue;
      // Whether a fence has passed by the time it is asked is the machine's business, and the calls
      // after it depend on that: another time, then.
      bool failed = false;
      for (int attempt = 0; attempt < 50 && !failed; ++attempt) failed = fail_once(c, code);
      EXPECT_TRUE(failed) << c.function << " #" << c.nth << " was made once and never again";
      if (HasFatalFailure()) return;
    }
  }
  if (!looks_further()) return;
  for (std::size_t k = 0; k < calls.size(); k += sanitizer().empty() ? 1 : 5) {
    fail_on(calls[k].function.c_str(), calls[k].nth, CUDA_ERROR_UNKNOWN);
    ++all_totals().twice;
    if (HasFatalFailure()) return;
  }
  const std::size_t step = std::max<std::size_t>(1, calls.size() / 6);
  for (std::size_t k = 1; k <= calls.size(); k += step) {
    fail_on(nullptr, k, CUDA_ERROR_ILLEGAL_ADDRESS);
    ++all_totals().lost;
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(of, fault_sweep, ::testing::ValuesIn(operations()), case_name);

}  // namespace

std::vector<operation> operations() {
  std::vector<operation> all;
  add_device_operations(all);
  add_pool_operations(all);
  add_space_operations(all);
  add_buffer_operations(all);
  add_sharing_operations(all);
  add_copying_operations(all);
  add_vector_operations(all);
  add_suspend_operations(all);
  add_process_operations(all);
  return all;
}

}  // namespace stillmap::testing
