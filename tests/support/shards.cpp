#include <gtest/gtest.h>

#include <cstdlib>

namespace {

// A program that runs a shard of its tests starts itself for some of them, as a second process. That
// one is told which test to run: as a shard too, it would leave it out unless the numbers agree.
class children_run_what_they_are_told : public ::testing::Environment {
 public:
  void SetUp() override {  // when GoogleTest has chosen this program's own tests
    ::unsetenv("GTEST_TOTAL_SHARDS");
    ::unsetenv("GTEST_SHARD_INDEX");
  }
};

[[maybe_unused]] const auto *const added =
    ::testing::AddGlobalTestEnvironment(new children_run_what_they_are_told);

}  // namespace
