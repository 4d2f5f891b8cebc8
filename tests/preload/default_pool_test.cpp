// What a program is told about the device's default pool is so with the preload, too.
#include "tests/preload/preload_test.h"

namespace stillmap {
namespace {

using testing::client_result;
using testing::client_setting;

class default_pool : public testing::preload_test,
                     public ::testing::WithParamInterface<std::size_t> {};

// Regression: memory that the allocator kept was reserved by the pool, and free to cuMemGetInfo.
TEST_P(default_pool, reserves_what_is_not_free) {
  for (const bool preloaded : {false, true}) {
    client_setting setting;
    setting.preloaded = preloaded;
    const client_result r = run("preload_default_pool", {std::to_string(GetParam())}, setting);
    EXPECT_EQ(r.status, 0) << preloaded;
    EXPECT_EQ(r.err, "") << preloaded;
  }
}
// The release threshold in bytes: none, some, no limit.
INSTANTIATE_TEST_SUITE_P(thresholds, default_pool,
                         ::testing::Values(0, std::size_t{20} << 20, SIZE_MAX));

}  // namespace
}  // namespace stillmap
