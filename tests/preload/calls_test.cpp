// Every function of the driver, called with arguments that mean nothing: what comes of it is what comes of it without
// the preload.
#include <sstream>

#include "tests/preload/preload_test.h"

namespace stillmap {
namespace {

using testing::client_result;
using testing::client_setting;

class calls : public testing::preload_test, public ::testing::WithParamInterface<int> {};

TEST_P(calls, that_mean_nothing_fail_as_without_the_preload) {
  const bool other_machine = profile().find("h200") == std::string::npos;
  if (other_machine && GetParam() != 1) GTEST_SKIP() << "as on the first machine";
  client_setting without;
  without.preloaded = false;
  const std::string seed = std::to_string(GetParam());
  const client_result plain = run("preload_calls", {seed}, without);
  const client_result ours = run("preload_calls", {seed});
  ASSERT_EQ(plain.status, 0) << plain.err;
  ASSERT_EQ(ours.status, 0) << ours.err;
  std::istringstream a(plain.out), b(ours.out);
  std::string first, second;
  int lines = 0;
  while (std::getline(a, first) && std::getline(b, second)) {
    ++lines;
    // What crashes without the preload may do anything.
    if (first.find("by signal") == std::string::npos) {
      EXPECT_EQ(second, first);
    }
  }
  EXPECT_GT(lines, 1400);
}

// 0: all arguments are zero.
INSTANTIATE_TEST_SUITE_P(seeds, calls, ::testing::Values(0, 1, 2));

}  // namespace
}  // namespace stillmap
