// What must work where the host has no memory at all: giving things back, and saying that there is none.
// tests/system/fault runs every operation with every allocation failing.
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "stillmap/vmm/mapping.h"
#include "stillmap/vmm/physical_memory.h"
#include "stillmap/vmm/remap.h"
#include "tests/support/buffer_test.h"
#include "tests/support/host_memory.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using testing::fail_host_allocation;

class without_host_memory : public testing::buffer_test {
 protected:
  address_space &space() const { return dev().space(); }
  std::size_t retiring_mappings() const { return space().stats().retiring_mappings; }
  static bool lacks_host_memory(const status &s) {
    return !s && s.error().is(errc::out_of_memory) &&
           s.error().code == std::errc::not_enough_memory;
  }
};

TEST_F(without_host_memory, pages_return_to_their_pool) {
  STILLMAP_NEEDS_VMM();
  page_pool_options options;
  options.keep_free = 8 * page();
  const auto pool = *page_pool::create(dev(), options);
  std::vector<page_ptr> pages;
  ASSERT_TRUE(pool->acquire(40, pages));
  {
    const fail_host_allocation all(0, true);
    pages.clear();
    EXPECT_FALSE(all.happened());
  }
  EXPECT_EQ(pool->stats().ready().bytes(), 8 * page());
  EXPECT_EQ(pool->stats().created.bytes(), 8 * page());
}

// Room in the list of imports is made first: recording one cannot fail.
TEST_F(without_host_memory, importing_takes_nothing_or_is_recorded) {
  STILLMAP_NEEDS_VMM();
  if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
  const auto made =
      physical_memory::create(dev(), page(), {on_device(0), handle_type::posix_fd, false});
  ASSERT_TRUE(made) << made.error().message();
  const auto fd = made->export_fd();
  ASSERT_TRUE(fd) << fd.error().message();
  std::vector<physical_handle> imported;
  imported.reserve(200);
  std::size_t refused = 0;
  const context_guard guard(driver(), dev().context());
  while (imported.size() < 100) {
    result<physical_handle> got = physical_handle::none;
    {
      const fail_host_allocation all(0, true);
      got = driver().import_fd(fd->get());
    }
    if (!got) {
      EXPECT_TRUE(lacks_host_memory(tl::unexpected(got.error())));
      ++refused;
      got = driver().import_fd(fd->get());
      ASSERT_TRUE(got) << got.error().message();
    }
    imported.push_back(*got);
  }
  EXPECT_GT(refused, 0u);
  EXPECT_EQ(driver().imports(), imported);
  for (const physical_handle h : imported) EXPECT_TRUE(driver().release_physical(h));
}

TEST_F(without_host_memory, acquire_takes_no_page) {
  STILLMAP_NEEDS_VMM();
  const auto pool = *page_pool::create(dev());
  ASSERT_TRUE(pool->prepare(2 * page()));
  std::uint64_t failed = 0;
  for (;; ++failed) {
    std::vector<page_ptr> pages;  // a new one, which needs room again
    fail_host_allocation failing(failed);
    const status taken = pool->acquire(4, pages);
    failing.stop();
    if (!failing.happened()) {
      ASSERT_TRUE(taken);
      EXPECT_EQ(pages.size(), 4u);
      break;
    }
    EXPECT_TRUE(lacks_host_memory(taken));
    EXPECT_TRUE(pages.empty());
    EXPECT_EQ(pool->stats().pages_reused, 0u);
  }
  EXPECT_GE(failed, 3u) << "room for the references, and two pages";
}

TEST_F(without_host_memory, a_page_with_two_fences_is_waited_for) {
  STILLMAP_NEEDS_VMM();
  const auto pool = *page_pool::create(dev());
  std::vector<page_ptr> pages;
  ASSERT_TRUE(pool->acquire(1, pages));
  page_ptr second = pages[0];
  const stream a = make_stream(), b = make_stream();
  const fence after_a = after(a), after_b = after(b);
  {
    const fail_host_allocation all(0, true);
    pages[0].retire(after_a);
    EXPECT_FALSE(all.happened()) << "one fence needs no memory";
    const std::uint64_t waits = counts()[driver_call::EventSynchronize];
    second.retire(after_b);
    EXPECT_TRUE(all.happened());
    EXPECT_EQ(counts()[driver_call::EventSynchronize], waits + 1);
  }
  EXPECT_EQ(pool->stats().free.bytes(), page());
}

TEST_F(without_host_memory, a_buffer_is_closed_at_once_or_behind_a_fence) {
  STILLMAP_NEEDS_VMM();
  const stream s = make_stream();
  for (const bool pending : {false, true}) {
    growable_buffer b = filled(5, "b", 1);
    ASSERT_TRUE(b.decommit(page(), page()));
    if (pending) testing::hold(s.get());
    const fence idle = after(s);
    {
      const fail_host_allocation all(0, true);
      EXPECT_TRUE(b.close(idle));
      EXPECT_FALSE(all.happened());
    }
    EXPECT_EQ(retiring_mappings(), pending ? 4u : 0u);
    if (pending) testing::release(s.get());
    {
      const fail_host_allocation all(0, true);
      EXPECT_EQ(space().collect(true), pending ? 4 * page() : 0);
      EXPECT_FALSE(all.happened());
    }
    EXPECT_EQ(space().stats().live_mappings, 0u);
    EXPECT_EQ(space().stats().live_blocks, 0u);
  }
}

TEST_F(without_host_memory, a_buffer_is_destroyed) {
  STILLMAP_NEEDS_VMM();
  std::optional<growable_buffer> b = filled(3, "b", 1);
  {
    const fail_host_allocation all(0, true);
    b.reset();
    EXPECT_FALSE(all.happened());
  }
  EXPECT_EQ(space().stats().live_mappings, 0u);
}

TEST_F(without_host_memory, a_buffer_grows_without_mapping_ahead) {
  STILLMAP_NEEDS_VMM();
  buffer_options options;
  options.reserve_bytes = 16 * page();
  options.map_ahead_bytes = 8 * page();
  growable_buffer b = make(options);
  ASSERT_TRUE(b.reserve(2 * page()));
  {
    const fail_host_allocation all(0, true);
    EXPECT_TRUE(b.resize(page()));
    EXPECT_TRUE(all.happened());
  }
  EXPECT_EQ(b.stats().ahead_failures, 1u);
  EXPECT_EQ(b.capacity(), 2 * page());
  ASSERT_TRUE(b.resize(2 * page()));
  while (b.stats().ahead_growths == 0) std::this_thread::yield();
  EXPECT_GE(b.capacity(), 10 * page());
}

TEST_F(without_host_memory, a_mapping_is_retired_again) {
  STILLMAP_NEEDS_VMM();
  const stream s = make_stream();
  testing::hold(s.get());
  growable_buffer b = filled(4, "b", 1);
  const fence idle = after(s);
  ASSERT_TRUE(b.resize(0));
  ASSERT_TRUE(b.shrink_to_fit(idle));
  const virtual_range range{b.address(), 4 * page()};
  const std::vector<access_grant> access{{on_device(dev().ordinal()), access_mode::read_write}};
  fence waited;
  const stream consumer = make_stream();
  {
    const fail_host_allocation all(0, true);
    const auto back = space().revive({range.begin, 2 * page()}, access, consumer, waited);
    ASSERT_TRUE(back);
    EXPECT_EQ(*back, 2 * page());
    EXPECT_EQ(retiring_mappings(), 2u);
    space().retire_again(space().block_at(range.begin), {range.begin, *back}, waited);
    EXPECT_EQ(retiring_mappings(), 4u);
    EXPECT_FALSE(all.happened());
  }
  testing::release(s.get());
  ASSERT_TRUE(space().collect_range(range));
  EXPECT_EQ(retiring_mappings(), 0u);
}

TEST_F(without_host_memory, a_plan_with_a_step_missing_fails) {
  STILLMAP_NEEDS_VMM();
  const auto addresses = *reservation::create(dev(), 4 * page());
  std::vector<page_ptr> pages;
  ASSERT_TRUE(dev().pool()->acquire(1, pages));
  remap_plan plan({});
  {
    const fail_host_allocation failing(0);
    plan.map(addresses.range().begin, pages[0]);
    EXPECT_TRUE(failing.happened());
  }
  EXPECT_FALSE(plan.empty());
  EXPECT_TRUE(lacks_host_memory(space().apply(std::move(plan))));
  EXPECT_EQ(space().stats().live_mappings, 0u);
}

TEST_F(without_host_memory, fences_are_copied_and_not_joined) {
  const stream a = make_stream(), b = make_stream();
  const fence after_b = after(b);
  fence f = after(a);
  {
    const fail_host_allocation all(0, true);
    const fence copy = f;
    EXPECT_TRUE(f.join(copy));
    EXPECT_TRUE(f.join(fence()));
    EXPECT_FALSE(all.happened());
    EXPECT_TRUE(lacks_host_memory(f.join(after_b)));
    EXPECT_FALSE(fence::after(dev(), a));
  }
  EXPECT_TRUE(f.join(after_b));
  EXPECT_TRUE(f.wait());
}

TEST_F(without_host_memory, nobody_is_subscribed) {
  STILLMAP_NEEDS_VMM();
  int events = 0;
  const backing_callback count = [&](const backing_event &) { ++events; };
  {
    const fail_host_allocation all(0, true);
    EXPECT_EQ(space().on_backing_change(count), nullptr);
  }
  const growable_buffer b = filled(1, "b", 1);
  EXPECT_EQ(events, 0);
}

}  // namespace
}  // namespace stillmap
