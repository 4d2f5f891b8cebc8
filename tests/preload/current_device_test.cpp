// A request is for the device of the context that is current, though the driver is not asked each time.
#include "tests/preload/preload_test.h"

namespace stillmap {
namespace {

using testing::client_result;
using testing::client_setting;

class current_device : public testing::preload_test, public ::testing::WithParamInterface<int> {};

TEST_P(current_device, is_the_one_that_the_driver_says) {
  client_setting without;
  without.preloaded = false;
  const std::string seed = std::to_string(GetParam());
  const client_result plain = run("preload_current_device", {seed}, without);
  ASSERT_EQ(plain.status, 0) << plain.err;
  const client_result r = run("preload_current_device", {seed});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.err, "");
  EXPECT_GT(r.total("allocations"), 100u) << r.statistics;
}
INSTANTIATE_TEST_SUITE_P(seeds, current_device, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace stillmap
