// Measures the cost table as briefly as possible: nothing leaks, whichever driver call fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "bench/costs/parts.h"
#include "bench/costs/run.h"
#include "tests/support/gpu_test.h"
#include "tests/support/hostcuda_control.h"

namespace stillmap::costs {
namespace {

namespace control = stillmap::testing::hostcuda_control;

class cost_measure : public stillmap::testing::device_test {
 protected:
  static bool has_row(const table &t, const std::string &call, const char *by, double x) {
    return std::any_of(t.rows.begin(), t.rows.end(), [&](const row &r) {
      return r.call == call && r.against == by && r.x == x && r.times.n >= least_samples(true);
    });
  }
  static const fact *find(const table &t, const std::string &name) {
    const auto found =
        std::find_if(t.facts.begin(), t.facts.end(), [&](const fact &f) { return f.name == name; });
    return found == t.facts.end() ? nullptr : &*found;
  }
  static std::string text(const table &t, const std::string &name) {
    const fact *const f = find(t, name);
    const auto *const value = f != nullptr ? std::get_if<std::string>(&f->value) : nullptr;
    return value != nullptr ? *value : "";
  }
  static bool is_told(const table &t, const std::string &code) {
    return std::any_of(t.rows.begin(), t.rows.end(), [&](const row &r) { return r.error == code; });
  }
};

TEST_F(cost_measure, all_of_it_runs_and_leaves_nothing) {
  const auto began = std::chrono::steady_clock::now();
  run_options options;
  options.seconds = 4;
  options.quick = true;
  const auto measured = measure(driver(), options);
  ASSERT_TRUE(measured.has_value()) << measured.error().message();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60));
  const table &t = *measured;
  for (const fact &f : t.facts) {
    EXPECT_NE(f.name.rfind("left_behind.", 0), 0u) << f.text;
    EXPECT_NE(f.name.rfind("failed.", 0), 0u) << f.text;
  }
  EXPECT_TRUE(has_row(t, "cuMemAlloc", against::size, 2 << 20));
  EXPECT_TRUE(has_row(t, "cuMemFree", against::threads, 8));
  EXPECT_TRUE(has_row(t, "cuEventRecord", against::nothing, 0));
  // A busy machine may hold one up until the work has ended, and then it waits sometimes.
  EXPECT_NE(text(t, "waits.non-blocking.cuMemGetInfo"), "");
  EXPECT_NE(text(t, "waits.non-blocking.cuMemGetInfo"), "waits");
  EXPECT_EQ(text(t, "waits.blocking.cuMemFree"), "waits");
  EXPECT_NE(costs_of(t).find("\ncuMemAlloc "), std::string::npos);
  EXPECT_NE(readable(t).find("cuMemAlloc"), std::string::npos);
  if (find(t, "missing.vmm") != nullptr) {
    EXPECT_EQ(costs_of(t).find("\ncuMemMap "), std::string::npos);
    return;
  }
  for (const char *call : {"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess",
                           "cuMemUnmap", "cuMemRelease", "cuMemAddressFree"}) {
    EXPECT_TRUE(has_row(t, call, against::size, 2 << 20)) << call;
    EXPECT_TRUE(has_row(t, call, against::threads, 8)) << call;
    EXPECT_TRUE(has_row(t, call, against::live, 10000)) << call;
    EXPECT_TRUE(has_row(t, call, against::work, 10)) << call;
  }
  EXPECT_TRUE(has_row(t, "cuMemUnmap", against::adjacent, 32));
  EXPECT_TRUE(has_row(t, "memset, first", against::touched, 2 << 20));
  EXPECT_NE(find(t, "batching.cuMemSetAccess"), nullptr);
  EXPECT_NE(find(t, "ceiling.none_within"), nullptr);
  EXPECT_EQ(text(t, "ceiling.usable_after"), "yes");
  EXPECT_EQ(text(t, "zero.new"), "yes");
  EXPECT_EQ(text(t, "zero.reused"), "yes");
  if (!on_hostcuda()) return;
  EXPECT_NE(text(t, "waits.non-blocking.cuMemUnmap"), "");
  EXPECT_NE(text(t, "waits.non-blocking.cuMemUnmap"), "waits");
  EXPECT_EQ(text(t, "capture.global.here.cuMemMap"), "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED");
  EXPECT_EQ(text(t, "capture.global.here in relaxed mode.cuMemMap"), "CUDA_SUCCESS");
  EXPECT_EQ(text(t, "capture.relaxed.here.cuMemMap"), "CUDA_SUCCESS");
}

TEST_F(cost_measure, the_first_mapping_that_is_refused_is_counted_to_one) {
  if (!on_hostcuda()) GTEST_SKIP() << "how many a GPU holds is what the program is to find out";
  const char *const given = std::getenv("HOSTCUDA");
  const std::string before = given != nullptr ? given : "";
  machine m(driver());
  ::setenv("HOSTCUDA", (before + (before.empty() ? "" : ",") + "mappings=3001").c_str(), 1);
  const status entered = m.enter(hostcuda_memory::unbacked);
  ::setenv("HOSTCUDA", before.c_str(), 1);
  ASSERT_TRUE(entered.has_value());
  if (!m.vmm()) GTEST_SKIP() << "no VMM";
  table t;
  measure_ceiling(m, time_left(60, 2, 20), true, t);
  EXPECT_EQ(m.leave(), "");
  const fact *const found = find(t, "ceiling.mappings");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(std::get<double>(found->value), 3001);
  EXPECT_EQ(text(t, "ceiling.refused_by"), "cuMemSetAccess");
  EXPECT_EQ(text(t, "ceiling.usable_after"), "yes");
}

// Each part with each of these calls refused once, early and later.
TEST_F(cost_measure, what_is_refused_leaves_nothing_behind) {
  if (!on_hostcuda()) GTEST_SKIP() << "only hostcuda refuses when asked";
  std::uint64_t fired = 0;
  for (const part &p : all_parts()) {
    for (const char *call :
         {"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemGetAccess",
          "cuMemRetainAllocationHandle", "cuMemExportToShareableHandle",
          "cuMemImportFromShareableHandle", "cuMemAlloc", "cuMemAllocAsync", "cuMemHostAlloc",
          "cuStreamCreate", "cuEventCreate", "cuModuleLoadData", "cuLaunchKernel",
          "cuMemsetD8Async", "cuMemcpyDtoH", "cuStreamBeginCapture"}) {
      for (const std::uint64_t nth : {1, 3}) {
        machine m(driver());
        ASSERT_TRUE(m.enter(p.memory).has_value());
        if (p.needs_vmm && !m.vmm()) continue;
        control::fail(call, nth, CUDA_ERROR_OUT_OF_MEMORY);
        table t;
        p.measure(m, time_left(0, 1, 1), true, t);
        fired += control::faults_fired();
        control::stop_failing(call);
        EXPECT_EQ(m.leave(), "") << p.name << ", call " << nth << " of " << call;
      }
    }
  }
  EXPECT_GT(fired, 20u);
}

TEST_F(cost_measure, what_is_refused_is_told) {
  if (!on_hostcuda()) GTEST_SKIP() << "only hostcuda refuses when asked";
  machine m(driver());
  for (const char *call : {"cuMemCreate", "cuMemUnmap", "cuMemRelease", "cuMemFree"}) {
    ASSERT_TRUE(m.enter(hostcuda_memory::unbacked).has_value());
    if (!m.vmm()) GTEST_SKIP() << "no VMM";
    control::fail(call, 1, CUDA_ERROR_OUT_OF_MEMORY);
    table t;
    measure_sizes(m, time_left(0, 1, 1), true, t);
    EXPECT_TRUE(is_told(t, "CUDA_ERROR_OUT_OF_MEMORY")) << call;
    EXPECT_EQ(m.leave(), "") << call;
  }
}

}  // namespace
}  // namespace stillmap::costs
