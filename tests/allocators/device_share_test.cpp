// The name of a shared quota, as variables and options have it. What needs a process of its own:
// tests/allocators/torch/device_share_test.cpp
#include "stillmap/allocators/device_share.h"

#include <gtest/gtest.h>

#include "stillmap/vmm/base/units.h"

namespace stillmap {
namespace {

using namespace literals;

TEST(device_share, reads_a_name_and_a_limit) {
  const auto read = [](const char *text) { return *parse_share(text, "STILLMAP_SHARE"); };
  EXPECT_EQ(read("gpu0").name, "gpu0");
  EXPECT_EQ(read("gpu0").limit, 0u);
  EXPECT_EQ(read("gpu0:60G").name, "gpu0");
  EXPECT_EQ(read("gpu0:60G").limit, 60_GiB);
  EXPECT_EQ(read("/run/a:b:1.5KiB").name, "/run/a:b");
  EXPECT_EQ(read("/run/a:b:1.5KiB").limit, 1536u);
  for (const char *wrong : {"", ":", ":1G", "x:", "x:0", "x:1X", "x:-1"}) {
    const auto refused = parse_share(wrong, "STILLMAP_SHARE");
    ASSERT_FALSE(refused) << wrong;
    EXPECT_TRUE(refused.error().is(errc::invalid_argument));
    EXPECT_EQ(refused.error().detail().subject, "STILLMAP_SHARE");
  }
}

TEST(device_share, each_device_has_a_name) {
  EXPECT_EQ(quota_name({"gpu"}, 0), "gpu");
  EXPECT_EQ(quota_name({"gpu"}, 1), "gpu.1");
  EXPECT_EQ(quota_name({"/run/gpu"}, 12), "/run/gpu.12");
}

}  // namespace
}  // namespace stillmap
