// Each host allocation of suspend and resume fails in turn: the memory is then completely there or
// completely suspended, and repeating the call succeeds.
#include <gtest/gtest.h>

#include "stillmap/checkpoint/suspend/suspender.h"
#include "tests/support/buffer_test.h"
#include "tests/support/held.h"
#include "tests/support/host_memory_sweep.h"

namespace stillmap::checkpoint {
namespace {

using stillmap::testing::allocation_sweep;
using stillmap::testing::fail_each_allocation;
using stillmap::testing::failing_allocation;
using stillmap::testing::held;
using stillmap::testing::holds;
using stillmap::testing::one_in;

class suspending_without_host_memory : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    STILLMAP_NEEDS_VMM();
    STILLMAP_ONE_PROFILE_DOES();
  }

  // A ring, and a fork, whose pages are mapped read-only. 8 places of 3 pages.
  struct memory {
    growable_buffer ring, twice, parent, child;
  };
  memory make_memory() {
    growable_buffer ring = filled(2, "shared", 1);
    growable_buffer twice = std::move(*ring.alias(0, 2 * page(), 2));
    growable_buffer parent = filled(1, "shared", 2);
    growable_buffer child = std::move(*parent.fork());
    return {std::move(ring), std::move(twice), std::move(parent), std::move(child)};
  }
  void expect_whole(const memory &m) const {
    EXPECT_EQ(dev().space().stats().suspended_bytes, 0u);
    EXPECT_EQ(dev().space().stats().retiring_mappings, 0u);
    EXPECT_TRUE(holds(dev(), m.ring.address(), 2 * page(), 1));
    EXPECT_TRUE(holds(dev(), m.twice.address() + 2 * page(), 2 * page(), 1));
    EXPECT_TRUE(holds(dev(), m.parent.address(), page(), 2));
    EXPECT_TRUE(holds(dev(), m.child.address(), page(), 2));
  }
  void expect_suspended() const {
    EXPECT_EQ(dev().space().stats().suspended_bytes, 8 * page());
    EXPECT_EQ(dev().space().stats().mapped_bytes, 0u);
  }
};

TEST_F(suspending_without_host_memory, memory_is_there_or_suspended) {
  allocation_sweep all = fail_each_allocation([&](failing_allocation &failing) {
    const auto made = failing([&] { return suspender::create(dev()); });
    EXPECT_TRUE(!made || *made != nullptr);
  });
  for (const backing_store store :
       {backing_store::pinned_host, backing_store::file, backing_store::discard}) {
    SCOPED_TRACE("store " + std::to_string(static_cast<int>(store)));
    suspend_options options;
    options.store = store;
    auto tested = suspender::create(dev());
    ASSERT_DONE(tested);
    suspender &s = **tested;
    const memory m = make_memory();
    const auto expect_contents = [&] {
      if (store != backing_store::discard) expect_whole(m);
    };
    // Once without failures: what is created once is not a leak.
    ASSERT_DONE(s.suspend("shared", options));
    ASSERT_DONE(s.resume("shared"));
    for (const bool all_after : {false, true}) {
      const held mapped = held::now(driver());
      all += fail_each_allocation(
          [&](failing_allocation &failing) {
            const auto done = failing([&] { return s.suspend("shared", options); });
            if (!done) {
              expect_contents();
              EXPECT_TRUE(s.suspended().empty());
              EXPECT_EQ(mapped.more_now(driver()), "");
              ASSERT_DONE(s.suspend("shared", options));
            } else {
              EXPECT_EQ(done->places, 8u);
              EXPECT_EQ(done->bytes, 3 * page());
            }
            expect_suspended();
            ASSERT_EQ(s.suspended().size(), 1u);
            ASSERT_DONE(s.resume("shared"));
            expect_contents();
          },
          all_after, all_after ? one_in(11) : one_in(3));
      ASSERT_FALSE(HasFailure());
      all += fail_each_allocation(
          [&](failing_allocation &failing) {
            ASSERT_DONE(s.suspend("shared", options));
            const held before = held::now(driver());
            const auto done = failing([&] { return s.resume("shared"); });
            if (!done) {
              expect_suspended();
              EXPECT_EQ(s.suspended().size(), 1u);
              EXPECT_EQ(before.more_now(driver()), "");
              ASSERT_DONE(s.resume("shared"));
            }
            EXPECT_TRUE(s.suspended().empty());
            expect_contents();
            EXPECT_EQ(mapped.more_now(driver()), "");
          },
          all_after, all_after ? one_in(11) : one_in(3));
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_GT(all.points, stillmap::testing::fewest_points(80));
  all.note("suspend", one_in(2) == 1 ? "" : " (one in 3; all from one in 11 on)");
}

}  // namespace
}  // namespace stillmap::checkpoint
