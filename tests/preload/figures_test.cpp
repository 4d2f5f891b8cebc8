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

// Of hostcuda's first device, as NVML writes it.
constexpr const char *first_device = "GPU-686f7374-6375-6461-2d67-707500000000";

class driver_limits : public testing::preload_test {
 protected:
  void expect_limit(const std::string &variable, std::size_t limit,
                    const std::string &own = "STILLMAP_PRELOAD_TAG=t") const {
    client_setting setting;
    setting.variables = {"HOSTCUDA=" + profile() + ",memory=512M", own,
                         "STILLMAP_PRELOAD_DEVICE_LIMITS=" + variable};
    const client_result r =
        run("preload_figures", {"1", std::to_string(limit), std::to_string(512u << 20)}, setting);
    EXPECT_EQ(r.status, 0) << variable << "\n" << r.out << r.err;
    EXPECT_EQ(r.err, "") << variable;
  }
};

TEST_F(driver_limits, hold_on_their_device) {
  const std::string here = first_device, other = "GPU-00010203-0405-0607-0809-0A0b0c0d0e0f";
  const std::size_t hard = 64 << 20, own = 48 << 20;
  expect_limit(here + "=" + std::to_string(hard) + ":", hard);
  expect_limit(other + "=1:1," + here + "=" + std::to_string(hard) + ":" + std::to_string(own),
               hard);
  expect_limit(other + "=1:1", SIZE_MAX);
  expect_limit(here + "=:" + std::to_string(hard), SIZE_MAX);
  expect_limit(here + "=" + std::to_string(hard), own,
               "STILLMAP_PRELOAD_LIMIT=" + std::to_string(own));
  expect_limit(here + "=" + std::to_string(own), own,
               "STILLMAP_PRELOAD_LIMIT=" + std::to_string(hard));
}

TEST_F(driver_limits, that_cannot_be_read_are_reported_and_not_used) {
  const std::string here = first_device;
  for (const std::string &wrong : {std::string("5"), here, here.substr(1) + "=5", here + "=5k",
                                   here + "=-1:", here + "=1:x", here + "=99999999999999999999999",
                                   std::string("GPU-x86f7374-6375-6461-2d67-707500000000=5")}) {
    client_setting setting;
    setting.variables = {"STILLMAP_PRELOAD_DEVICE_LIMITS=" + wrong};
    const client_result r = run("preload_linked", {}, setting);
    EXPECT_EQ(r.status, 0) << wrong;
    EXPECT_EQ(r.total("allocations"), 4u) << wrong;
    EXPECT_NE(r.err.find("STILLMAP_PRELOAD_DEVICE_LIMITS: '" + wrong + "'"), std::string::npos)
        << r.err;
  }
}

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
