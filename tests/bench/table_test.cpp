// The cost table's arithmetic and file formats, without a measurement.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "bench/costs/fit.h"
#include "bench/costs/table.h"
#include "bench/costs/time_left.h"
#include "tests/support/gpu_test.h"
#include "tests/support/hostcuda_control.h"

namespace stillmap::costs {
namespace {

TEST(cost_samples, a_percentile_is_a_time_that_was_seen) {
  std::vector<double> times;
  for (int i = 200; i >= 1; --i) times.push_back(i);
  EXPECT_EQ(percentile(times, 99), 198);
  EXPECT_EQ(percentile(times, 100), 200);
  EXPECT_EQ(percentile(times, 0), 1);
  EXPECT_EQ(percentile({7, 3}, 99), 7);
  EXPECT_EQ(percentile({}, 99), 0);
}

TEST(cost_samples, the_median_is_in_the_middle) {
  EXPECT_EQ(median({9, 1, 2}), 2);
  EXPECT_EQ(median({9, 1, 2, 4}), 3);
  EXPECT_EQ(median({}), 0);
}

TEST(cost_samples, a_refused_call_is_no_sample) {
  call_times times;
  times.time("call", [] { return true; });
  times.time("call", [] { return false; });
  EXPECT_EQ(times.of("call").size(), 1u);
}

TEST(cost_fit, finds_the_line_that_there_is) {
  const price p =
      fit({{2, 29000 + 2 * 1000}, {32, 29000 + 32 * 1000}, {1024, 29000 + 1024 * 1000}});
  EXPECT_NEAR(p.fixed_ns, 29000, 1e-3);
  EXPECT_NEAR(p.ns_per_mib, 1000, 1e-6);
}

TEST(cost_fit, a_large_size_does_not_decide_what_small_ones_cost) {
  // The largest is off by a tenth: two hundred times what a small one takes.
  const price p = fit({{2, 5200}, {8, 5800}, {32, 8200}, {128, 17800}, {10000, 1100000}});
  EXPECT_NEAR(p.fixed_ns, 5000, 300);
}

TEST(cost_fit, is_never_negative) {
  const price falling = fit({{2, 300}, {8, 200}, {32, 100}});
  EXPECT_GT(falling.fixed_ns, 0);
  EXPECT_EQ(falling.ns_per_mib, 0);
  const price steep = fit({{2, 10}, {8, 80}, {32, 800}});  // a line would begin below 0
  EXPECT_EQ(steep.fixed_ns, 0);
  EXPECT_GT(steep.ns_per_mib, 0);
}

TEST(cost_fit, of_too_little_is_what_there_is) {
  EXPECT_EQ(fit({}).fixed_ns, 0);
  EXPECT_EQ(fit({{2, 700}}).fixed_ns, 700);
  EXPECT_EQ(fit({{2, 700}}).ns_per_mib, 0);
  EXPECT_NEAR(fit({{2, 700}, {2, 700}}).fixed_ns, 700, 1e-6);
  EXPECT_EQ(fit({{2, 0}, {8, 0}}).fixed_ns, 0);
}

TEST(cost_time, takes_the_least_when_the_time_is_over_and_no_more_than_the_most) {
  const time_left over(0, 3, 10), long_time(3600, 3, 10);
  EXPECT_TRUE(over.more(2));
  EXPECT_FALSE(over.more(3));
  EXPECT_TRUE(long_time.more(9));
  EXPECT_FALSE(long_time.more(10));
  EXPECT_FALSE(long_time.at_most(2).more(2));
  EXPECT_NEAR(long_time.share(0.25).seconds(), 900, 1);
}

row sized(const char *call, double mib, double ns, int threads = 1) {
  return {call, against::size, mib * (1 << 20), threads, {5, ns, 2 * ns}, ""};
}

table sample() {
  table t;
  t.device = "A \"quoted\" GPU\n";
  t.driver = "CUDA 13.0";
  t.rows = {sized("cuMemCreate", 2, 31000),
            sized("cuMemCreate", 64, 93000),
            sized("cuMemCreate (shareable)", 2, 99000),
            sized("memset, first", 2, 99000),
            {"cuMemMap", against::live, 1000, 1, {5, 99000, 99000}, ""},
            {"cuMemMap", against::threads, 8, 8, {5, 99000, 99000}, ""},
            {"cuMemMap", against::nothing, 0, 1, {5, 1500, 1600}, ""},
            {"cuMemUnmap", against::size, 2 << 20, 1, {}, "CUDA_ERROR_INVALID_VALUE"}};
  return t;
}

TEST(cost_table, costs_are_of_calls_as_they_are) {
  std::string text = costs_of(sample());
  text.erase(0, text.find("cuMem"));
  EXPECT_EQ(text, "cuMemCreate 29000 1000.000\ncuMemMap 1500 0.000\n");
}

TEST(cost_table, a_device_with_a_line_break_stays_in_the_comment) {
  const std::string text = costs_of(sample());
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
}

TEST(cost_table, json_has_no_time_where_there_was_none) {
  const std::string text = json_of(sample());
  EXPECT_NE(text.find("\"device\": \"A \\\"quoted\\\" GPU\\u000a\""), std::string::npos) << text;
  EXPECT_NE(text.find("\"n\": 0, \"median_ns\": null, \"p99_ns\": null, "
                      "\"error\": \"CUDA_ERROR_INVALID_VALUE\"}"),
            std::string::npos)
      << text;
}

TEST(cost_table, numbers_are_short) {
  EXPECT_EQ(microseconds(1234), "1.23");
  EXPECT_EQ(microseconds(38000), "38.0");
  EXPECT_EQ(microseconds(1.5e6), "1500");
  EXPECT_EQ(short_number(32 << 20), "32M");
  EXPECT_EQ(short_number(100000), "100000");
}

// hostcuda reads what is written, and a call then costs what the table says.
class cost_file : public stillmap::testing::device_test {};

TEST_F(cost_file, is_what_hostcuda_reads) {
  if (!on_hostcuda()) GTEST_SKIP() << "only hostcuda reads cost tables";
  table t;
  t.driver = "two\nlines";
  t.rows = {sized("cuMemAlloc", 2, 12000), sized("cuMemAlloc", 32, 42000)};
  for (const char *call : {"cuCtxGetCurrent", "cuMemGetInfo"}) {
    t.rows.push_back({call, against::nothing, 0, 1, {5, 700, 700}, ""});
  }
  const std::string file = ::testing::TempDir() + "stillmap_cost_table.txt";
  std::ofstream(file) << costs_of(t);
  become(("unbacked,costs=" + file).c_str());
  std::remove(file.c_str());
  using modelled = CUresult(std::uint64_t *);
  auto *const ask = reinterpret_cast<modelled *>(driver().symbol("hostcuda_modelled_ns"));
  ASSERT_NE(ask, nullptr);
  const auto context = driver().retain_primary_context(0);
  ASSERT_TRUE(context.has_value());
  ASSERT_TRUE(driver().push_context(*context).has_value());
  std::uint64_t before = 0, after = 0;
  ASSERT_EQ(ask(&before), CUDA_SUCCESS);
  const auto at = driver().allocate(8 << 20);
  ASSERT_TRUE(at.has_value());
  ASSERT_EQ(ask(&after), CUDA_SUCCESS);
  EXPECT_EQ(after - before, 10000u + 8 * 1000);
  EXPECT_TRUE(driver().free(*at).has_value());
  EXPECT_TRUE(driver().pop_context().has_value());
  EXPECT_TRUE(driver().release_primary_context(0).has_value());
}

}  // namespace
}  // namespace stillmap::costs
