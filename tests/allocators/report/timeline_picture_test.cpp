// Pictures of memory over a run.
#include "stillmap/allocators/report/timeline_picture.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "stillmap/vmm/base/units.h"
#include "tests/support/golden.h"

namespace stillmap::testing {
namespace {

using namespace stillmap::literals;

timeline_picture two_curves() {
  timeline_picture p;
  p.title = "llama <1b>";
  p.subtitle = "memory over the run";
  p.capacity = 4_GiB;
  timeline_curve good{"stillmap", {}, false}, bad{"segments", {}, true};
  for (std::uint64_t i = 1; i <= 8; ++i) {
    const std::uint64_t live = (i % 4 + 1) * 800_MiB;
    good.points.push_back({i * 100, live, live + 10_MiB});
    if (i <= 5) bad.points.push_back({i * 100, live, live + 300_MiB});
  }
  p.curves = {good, bad};
  return p;
}

TEST(TimelinePicture, IsAsItWas) {
  if (!std::filesystem::exists("tests/allocators/report/golden")) {
    GTEST_SKIP() << "the golden files are not packed";
  }
  const auto svg = to_svg(two_curves());
  ASSERT_TRUE(svg) << svg.error().message();
  expect_golden("tests/allocators/report/golden/timeline.svg", *svg);
}

TEST(TimelinePicture, SaysThePeaksAndWhereMemoryRanOut) {
  const std::string svg = *to_svg(two_curves());
  for (const char *const part : {"llama &lt;1b&gt;", "allocated by the program, at most 3.12 GiB",
                                 "stillmap held at most 3.13 GiB", "segments held at most 3.42 GiB",
                                 "ran out of memory", "capacity 4 GiB", "800 requests"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(svg.find("<script"), std::string::npos);
}

TEST(TimelinePicture, ALimitFarAboveIsNotDrawn) {
  timeline_picture p = two_curves();
  p.capacity = 40_GiB;
  EXPECT_EQ(to_svg(p)->find("capacity"), std::string::npos);
}

TEST(TimelinePicture, OfNothingIsEmpty) {
  timeline_picture p;
  EXPECT_NE(to_svg(p)->find("</svg>"), std::string::npos);
  p.curves = {{"stillmap", {}, true}, {"direct", {{5, 0, 0}}, false}};
  EXPECT_NE(to_svg(p)->find("direct held at most 0 B"), std::string::npos);
}

}  // namespace
}  // namespace stillmap::testing
