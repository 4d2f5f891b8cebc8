// remap_plan::suspend and resume: what the ledger records, which operations the owner of suspended
// memory can still do, and how pages return.
#include <gtest/gtest.h>

#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/remap.h"
#include "stillmap/vmm/reservation.h"
#include "tests/support/buffer_test.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using namespace literals;
using testing::fails_with;
using testing::hold;
using testing::release;

class suspended_places : public testing::buffer_test {
 protected:
  static constexpr std::uint64_t me = 7;

  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
  }
  growable_buffer filled(std::size_t pages) const {
    buffer_options options;
    options.reserve_bytes = 32_MiB;
    growable_buffer b = make(std::move(options));
    const status s = b.resize(pages * page());
    if (!s) throw std::runtime_error(s.error().message());
    return b;
  }
  status suspend(const growable_buffer &b, std::size_t first, std::size_t pages) const {
    remap_plan plan({});
    plan.suspend({b.address() + first * page(), pages * page()}, me);
    return dev().space().apply(std::move(plan));
  }
  status resume(const growable_buffer &b, std::size_t first, std::size_t pages,
                std::uint64_t by = me) const {
    std::vector<page_ptr> fresh;
    if (status s = dev().pool()->acquire(pages, fresh); !s) return s;
    remap_plan plan({});
    for (std::size_t i = 0; i < pages; ++i) {
      plan.resume(b.address() + (first + i) * page(), fresh[i], by);
    }
    return dev().space().apply(std::move(plan));
  }
  mapping_state state_at(device_address at) const {
    return dev().space().mappings({at, 1}).at(0).state;
  }
  address_space_stats books() const { return dev().space().stats(); }
};

TEST_F(suspended_places, pages_go_and_come_back_with_the_access_they_had) {
  growable_buffer b = filled(4);
  const auto before = dev().space().mappings({b.address(), 4 * page()});
  const std::uint64_t generation = b.generation();
  ASSERT_TRUE(suspend(b, 1, 2));
  EXPECT_EQ(books().mapped_bytes, 2 * page());
  EXPECT_EQ(books().suspended_bytes, 2 * page());
  EXPECT_EQ(books().live_mappings, 2u);
  EXPECT_GT(b.generation(), generation);
  EXPECT_EQ(state_at(b.address()), mapping_state::mapped);
  EXPECT_EQ(state_at(b.address() + page()), mapping_state::suspended);
  EXPECT_FALSE(dev().space().mappings({b.address() + page(), 1}).at(0).backing);
  EXPECT_EQ(dev().space().blocks().at(0).suspended_bytes, 2 * page());
  EXPECT_TRUE(b.committed(0, 4 * page()));

  ASSERT_TRUE(resume(b, 1, 2));
  EXPECT_EQ(books().suspended_bytes, 0u);
  EXPECT_EQ(books().live_mappings, 4u);
  const auto now = dev().space().mappings({b.address(), 4 * page()});
  ASSERT_EQ(now.size(), before.size());
  for (std::size_t i = 0; i < now.size(); ++i) {
    EXPECT_EQ(now[i].range, before[i].range);
    EXPECT_EQ(now[i].access, before[i].access);
    EXPECT_EQ(now[i].state, mapping_state::mapped);
  }
}

TEST_F(suspended_places, what_was_not_suspended_by_the_same_cannot_be_resumed) {
  growable_buffer b = filled(2);
  ASSERT_TRUE(suspend(b, 0, 1));
  EXPECT_TRUE(fails_with(resume(b, 0, 1, me + 1), errc::invalid_argument, "address_space::apply"));
  EXPECT_TRUE(fails_with(resume(b, 1, 1), errc::invalid_argument, "address_space::apply"));
  page_pool_options larger;
  larger.page_bytes = 2 * page();
  const auto pool = page_pool::create(dev(), larger);
  ASSERT_TRUE(pool);
  std::vector<page_ptr> fresh;
  ASSERT_TRUE((*pool)->acquire(1, fresh));
  remap_plan plan({});
  plan.resume(b.address(), fresh[0], me);
  EXPECT_TRUE(fails_with(dev().space().apply(std::move(plan)), errc::invalid_argument,
                         "address_space::apply"));
  EXPECT_TRUE(fails_with(suspend(b, 0, 2), errc::busy, "address_space::apply"));
  EXPECT_EQ(state_at(b.address() + page()), mapping_state::mapped);
  EXPECT_EQ(books().suspended_bytes, page());
  EXPECT_TRUE(resume(b, 0, 1));
}

TEST_F(suspended_places, what_needs_the_pages_is_busy_and_changes_nothing) {
  growable_buffer b = filled(3);
  growable_buffer child = *b.fork();
  growable_buffer elsewhere = filled(3);
  const std::size_t mapped = books().mapped_bytes;
  ASSERT_TRUE(suspend(b, 0, 3));
  EXPECT_TRUE(fails_with(testing::outcome(b.fork()), errc::busy, "growable_buffer::fork"));
  EXPECT_TRUE(
      fails_with(b.make_writable(0, page(), {}), errc::busy, "growable_buffer::make_writable"));
  EXPECT_EQ(books().suspended_bytes, 3 * page());
  EXPECT_EQ(books().mapped_bytes, mapped - 3 * page());
  ASSERT_TRUE(suspend(elsewhere, 0, 2));
  EXPECT_TRUE(fails_with(testing::outcome(elsewhere.alias(0, page(), 2)), errc::busy,
                         "growable_buffer::alias"));
  EXPECT_TRUE(fails_with(elsewhere.splice(0, page(), child, 4 * page()), errc::busy,
                         "growable_buffer::splice"));
  EXPECT_TRUE(fails_with(elsewhere.resize(80_MiB), errc::busy, "growable_buffer::resize") ||
              elsewhere.stats().relocations == 0);
  EXPECT_TRUE(resume(elsewhere, 0, 2));
  EXPECT_TRUE(elsewhere.alias(0, page(), 2));
}

TEST_F(suspended_places, a_plan_cannot_change_who_may_touch_them) {
  growable_buffer b = filled(2);
  ASSERT_TRUE(suspend(b, 1, 1));
  remap_plan plan({});
  plan.grant({b.address(), 2 * page()}, {{on_device(0), access_mode::read}});
  EXPECT_TRUE(fails_with(dev().space().apply(std::move(plan)), errc::busy, "address_space::apply",
                         (b.address() + page()).value(), 0));
  const reservation other = std::move(*reservation::create(dev(), 2 * page()));
  remap_plan second({});
  second.alias(other.range().begin, {b.address(), 2 * page()});
  EXPECT_TRUE(fails_with(dev().space().apply(std::move(second)), errc::busy, "address_space::apply",
                         (b.address() + page()).value(), 0));
  ASSERT_TRUE(resume(b, 1, 1));
}

TEST_F(suspended_places, their_owner_grows_shrinks_and_goes_as_ever) {
  growable_buffer b = filled(3);
  ASSERT_TRUE(suspend(b, 0, 3));
  ASSERT_TRUE(b.resize(5 * page()));
  EXPECT_EQ(books().live_mappings, 2u);
  const stream s = make_stream();
  hold(s.get());
  const fence busy = after(s);
  ASSERT_TRUE(b.resize(page()));
  ASSERT_TRUE(b.shrink_to_fit(busy));
  EXPECT_EQ(books().suspended_bytes, page());
  release(s.get());
  ASSERT_TRUE(s.synchronize());
  // The places that were given up can be used again, and are not resumed.
  ASSERT_TRUE(b.resize(3 * page()));
  EXPECT_TRUE(fails_with(resume(b, 0, 3), errc::invalid_argument, "address_space::apply"));
  EXPECT_EQ(books().suspended_bytes, page());
  ASSERT_TRUE(b.close({}));
  EXPECT_EQ(books().suspended_bytes, 0u);
  EXPECT_EQ(books().mapped_bytes, 0u);
}

TEST_F(suspended_places, retired_alone_they_are_given_up_without_the_driver) {
  growable_buffer b = filled(2);
  ASSERT_TRUE(suspend(b, 0, 2));
  const auto block = dev().space().block_at(b.address());
  const driver_counts before = counts();
  ASSERT_TRUE(dev().space().retire(block, {b.address(), 2 * page()}, fence()));
  EXPECT_EQ((counts() - before).total(), 0u);
  EXPECT_EQ(books().suspended_bytes, 0u);
}

TEST_F(suspended_places, addresses_that_go_take_them_along) {
  {
    growable_buffer b = filled(3);
    ASSERT_TRUE(suspend(b, 1, 2));
  }
  EXPECT_EQ(books().suspended_bytes, 0u);
  EXPECT_EQ(books().live_mappings, 0u);
  EXPECT_EQ(books().live_blocks, 0u);
}

}  // namespace
}  // namespace stillmap
