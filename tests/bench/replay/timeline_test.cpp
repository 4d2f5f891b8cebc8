// Memory over a run: the points that a replay takes, and their picture's file.
#include "bench/replay/timeline.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "bench/replay/replay.h"
#include "stillmap/allocators/trace/trace.h"
#include "tests/support/buffer_test.h"

namespace stillmap::testing {
namespace {

using namespace stillmap::literals;
using namespace stillmap::replay;

class ReplayTimeline : public buffer_test {
 protected:
  // 100 blocks of 4 MiB that are freed in order, with at most 10 alive, and then one of 64 MiB.
  replay_plan plan() {
    trace_writer out("blocks");
    for (std::uint64_t i = 0; i < 100; ++i) {
      out.allocate(i, 4_MiB, 0);
      if (i >= 9) out.free(i - 9);
    }
    out.allocate(100, 64_MiB, 0);
    auto made = plan_replay(*read_trace(out.take()), std::nullopt);
    EXPECT_TRUE(made) << made.error().message();
    return std::move(*made);
  }
  result<timeline_picture> timeline(timeline_options o) {
    if (o.kinds.empty()) o.kinds = {*find_target("stillmap"), *find_target("segments")};
    return timeline_of(dev(), plan(), o, "blocks.trace");
  }
};

TEST_F(ReplayTimeline, HasTheMaximaOfEachInterval) {
  timeline_options o;
  o.points = 20;
  const auto p = timeline(o);
  ASSERT_TRUE(p) << p.error().message();
  ASSERT_EQ(p->curves.size(), 2u);
  for (const timeline_curve &c : p->curves) {
    SCOPED_TRACE(c.title);
    EXPECT_FALSE(c.oom);
    ASSERT_LE(c.points.size(), 20u);
    ASSERT_GE(c.points.size(), 15u);
    std::uint64_t before = 0;
    for (const timeline_point &at : c.points) {
      EXPECT_GT(at.requests, before);
      before = at.requests;
      EXPECT_GE(at.committed, at.live);
    }
    EXPECT_EQ(before, 100u + 91u + 1u) << "all requests are in an interval";
    EXPECT_EQ(c.points[8].live, 40_MiB);
    EXPECT_EQ(c.points.back().live, 36_MiB + 64_MiB);
    EXPECT_GE(c.points.back().committed, 100_MiB);
  }
}

TEST_F(ReplayTimeline, HasAPointForEachRequestAtMost) {
  timeline_options o;
  o.kinds = {*find_target("direct")};
  const auto p = timeline(o);
  ASSERT_TRUE(p) << p.error().message();
  EXPECT_EQ(p->curves[0].points.size(), 192u);
  EXPECT_EQ(p->curves[0].points[0].live, 4_MiB);
  EXPECT_EQ(p->curves[0].points[190].live, 36_MiB + 4_MiB) << "the free after the peak";
}

TEST_F(ReplayTimeline, EndsWhereMemoryRunsOut) {
  timeline_options o;
  o.capacity = 64_MiB;
  const auto p = timeline(o);
  ASSERT_TRUE(p) << p.error().message();
  for (const timeline_curve &c : p->curves) {
    EXPECT_TRUE(c.oom);
    ASSERT_FALSE(c.points.empty());
    EXPECT_EQ(c.points.back().requests, 191u);
  }
}

TEST_F(ReplayTimeline, IsWrittenAsSvg) {
  timeline_picture p;
  const std::string folder = ::testing::TempDir() + "timeline_test";
  EXPECT_FALSE(write_timeline(p, folder + "/t.png"));
  ASSERT_TRUE(write_timeline(p, folder + "/t.svg"));
  std::ifstream in(folder + "/t.svg");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), *to_svg(p));
  std::filesystem::remove_all(folder);
}

// Regression: where the program was being recorded, a replay was written into the recording.
TEST_F(ReplayTimeline, IsNotRecorded) {
  const std::string path = ::testing::TempDir() + "not_recorded.trace";
  ::setenv("STILLMAP_RECORD", path.c_str(), 1);
  const auto p = timeline({});
  ::unsetenv("STILLMAP_RECORD");
  ASSERT_TRUE(p) << p.error().message();
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace stillmap::testing
