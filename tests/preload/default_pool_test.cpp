// What a program is told about the device's default pool is so with the preload, too.
#include "tests/preload/preload_test.h"

namespace stillmap {
namespace {

using testing::client_result;
using testing::client_setting;

class default_pool : public testing::preload_test,
                     public ::testing::WithParamInterface<std::size_t> {};

// Regression: memory that the allocator kept was reserved by the pool, and free to cuMemGetInfo; a peak that the program
// had reset was the old one. What the library reports at its end are the peaks of all time.
TEST_P(default_pool, says_what_the_drivers_own_says) {
  for (const bool preloaded : {false, true}) {
    client_setting setting;
    setting.preloaded = preloaded;
    const client_result r = run("preload_default_pool", {std::to_string(GetParam())}, setting);
    EXPECT_EQ(r.status, 0) << preloaded;
    EXPECT_EQ(r.err, "") << preloaded;
    if (preloaded && r.blocks() >= 0) {
      EXPECT_GT(r.total("live_peak_bytes"), std::uint64_t{3} << 20) << r.statistics;
      EXPECT_GT(r.total("committed_peak_bytes"), std::uint64_t{3} << 20) << r.statistics;
    }
  }
}
// The release threshold in bytes: none, some, no limit.
INSTANTIATE_TEST_SUITE_P(thresholds, default_pool,
                         ::testing::Values(0, std::size_t{20} << 20, SIZE_MAX));

}  // namespace
}  // namespace stillmap
