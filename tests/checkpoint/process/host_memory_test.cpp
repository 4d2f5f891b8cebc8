// Each host allocation of preparing a process and of resuming it fails in turn: the process is then
// as before, and repeating the call succeeds.
#include <gtest/gtest.h>

#include "stillmap/checkpoint/process/process_checkpoint.h"
#include "tests/support/buffer_test.h"
#include "tests/support/held.h"
#include "tests/support/host_memory_sweep.h"

namespace stillmap::process {
namespace {

using stillmap::testing::allocation_sweep;
using stillmap::testing::fail_each_allocation;
using stillmap::testing::failing_allocation;
using stillmap::testing::held;
using stillmap::testing::holds;

class process_without_host_memory : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    STILLMAP_NEEDS_VMM();
    STILLMAP_ONE_PROFILE_DOES();
  }
};

TEST_F(process_without_host_memory, a_process_is_prepared_or_as_before) {
  const growable_buffer weights = filled(3, "weights of this process", 1),
                        cache = filled(2, "cache of this process", 2);
  auto made = process_checkpoint::create({dev()});
  ASSERT_DONE(made);
  process_checkpoint &tested = **made;
  prepare_options options;
  options.evict_everything = true;
  ASSERT_DONE(tested.prepare(options));
  ASSERT_DONE(tested.resume());
  const auto expect_whole = [&] {
    EXPECT_TRUE(tested.suspended().empty());
    EXPECT_FALSE(tested.prepared());
    EXPECT_TRUE(holds(dev(), weights.address(), 3 * page(), 1));
    EXPECT_TRUE(holds(dev(), cache.address(), 2 * page(), 2));
  };
  const held before = held::now(driver());
  allocation_sweep all = fail_each_allocation([&](failing_allocation &failing) {
    if (!failing([&] { return tested.prepare(options); })) {
      expect_whole();
      EXPECT_EQ(before.more_now(driver()), "");
      ASSERT_DONE(tested.prepare(options));
    }
    EXPECT_EQ(tested.suspended().size(), 2u);
    ASSERT_DONE(tested.resume());
    expect_whole();
  });
  ASSERT_FALSE(HasFailure());
  all += fail_each_allocation([&](failing_allocation &failing) {
    ASSERT_DONE(tested.prepare(options));
    if (!failing([&] { return tested.resume(); })) {
      EXPECT_TRUE(tested.prepared());
      ASSERT_DONE(tested.resume());
    }
    expect_whole();
    EXPECT_EQ(before.more_now(driver()), "");
  });
  EXPECT_GT(all.points, stillmap::testing::fewest_points(100));
  all.note("process");
}

}  // namespace
}  // namespace stillmap::process
