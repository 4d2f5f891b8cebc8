// What a program is told about memory, under limits.
#include <random>

#include "tests/preload/preload_test.h"

namespace stillmap {
namespace {

using testing::client_result;
using testing::client_setting;

class figures : public testing::preload_test, public ::testing::WithParamInterface<int> {};

TEST_P(figures, are_within_the_limit_and_the_device) {
  std::mt19937_64 random(static_cast<unsigned>(GetParam()));
  constexpr std::size_t MiB = std::size_t{1} << 20, device_bytes = 512 * MiB;
  // Of no round size; less than a page; more than the device has; all there is.
  const std::size_t limits[] = {random() % (300 * MiB) + 2 * MiB, 64 * MiB, 700 * MiB, 12345,
                                SIZE_MAX};
  for (const std::size_t limit : limits) {
    client_setting setting;
    setting.variables = {"HOSTCUDA=" + profile() + ",memory=512M",
                         "STILLMAP_PRELOAD_LIMIT=" + std::to_string(limit)};
    const client_result r = run(
        "preload_figures",
        {std::to_string(GetParam()), std::to_string(limit), std::to_string(device_bytes)}, setting);
    EXPECT_EQ(r.status, 0) << limit << "\n" << r.out << r.err;
    EXPECT_EQ(r.err, "") << limit;
  }
}
INSTANTIATE_TEST_SUITE_P(seeds, figures, ::testing::Values(1, 2, 3));

class variable_values : public testing::preload_test {};

TEST_F(variable_values, that_are_no_limit_are_reported_and_not_used) {
  for (const char *const wrong : {"20GiB", "-1", "0", " 5", "99999999999999999999999"}) {
    client_setting setting;
    setting.variables = {std::string("STILLMAP_PRELOAD_LIMIT=") + wrong};
    const client_result r = run("preload_linked", {}, setting);
    EXPECT_EQ(r.status, 0) << wrong;
    EXPECT_EQ(r.total("allocations"), 4u);
    EXPECT_NE(r.err.find(std::string("STILLMAP_PRELOAD_LIMIT=") + wrong), std::string::npos)
        << r.err;
  }
}

}  // namespace
}  // namespace stillmap
