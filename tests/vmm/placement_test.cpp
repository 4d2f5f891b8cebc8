// Placement of a buffer's memory: several devices, host memory, growth past the reservation, mapping
// ahead.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "stillmap/vmm/base/units.h"
#include "stillmap/vmm/reservation.h"
#include "tests/support/buffer_test.h"
#include "tests/support/effort.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using namespace literals;
using testing::fails_with;
using testing::holds;
using testing::outcome;
using testing::pattern;
using testing::put;

class placement : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
  }
  // Takes the addresses right behind `b`.
  std::optional<reservation> wall_behind(const growable_buffer &b) const {
    reservation_options options;
    options.hint = b.range().end();
    options.exact_address = true;
    auto made = reservation::create(dev(), page(), options);
    if (!made) return std::nullopt;
    return std::move(*made);
  }
  reservation some(std::size_t pages) const {
    auto made = reservation::create(dev(), pages * page());
    if (!made) throw std::runtime_error(made.error().message());
    return std::move(*made);
  }
  growable_buffer reserving(std::size_t pages) const {
    buffer_options options;
    options.reserve_bytes = pages * page();
    return make(options);
  }
};

TEST_F(placement, grows_past_its_reservation_and_keeps_its_bytes) {
  growable_buffer b = reserving(2);
  ASSERT_TRUE(b.resize(2 * page()));
  put(dev(), b.address(), pattern(2 * page(), 1));
  const device_address at = b.address();
  ASSERT_TRUE(b.resize(20 * page()));
  EXPECT_GE(b.reserved(), 20 * page());
  EXPECT_TRUE(holds(dev(), b.address(), 2 * page(), 1));
  EXPECT_EQ(b.stats().relocations, b.address() == at ? 0u : 1u);
  EXPECT_EQ(b.stats().bytes_copied, 0u);
  put(dev(), b.address(), pattern(20 * page(), 2));
  EXPECT_TRUE(holds(dev(), b.address(), 20 * page(), 2)) << "across both reservations";
  ASSERT_TRUE(b.resize(page()));
  ASSERT_TRUE(b.shrink_to_fit());
  EXPECT_EQ(b.mapped_bytes(), page());
}

TEST_F(placement, extends_in_place_where_the_addresses_are_free) {
  // Room is made by giving back a neighbour, once a buffer has one: the first few may fall into
  // holes that others left.
  // What the host needs for it comes first: a large block of its own might take the room.
  const std::vector<unsigned char> bytes = pattern(2 * page(), 1);
  std::vector<growable_buffer> buffers;
  std::vector<reservation> neighbours;
  bool room = false;
  for (int i = 0; i < 64 && !room; ++i) {
    neighbours.push_back(some(16));
    buffers.push_back(reserving(2));
    neighbours.push_back(some(16));
    const device_address end = buffers.back().range().end();
    room = std::erase_if(neighbours, [&](const reservation &r) {
             return r.range().begin >= end && r.range().begin - end <= 2 * page();
           }) != 0;
  }
  if (!room) GTEST_SKIP() << "this driver leaves gaps between reservations";
  growable_buffer b = std::move(buffers.back());
  const std::size_t blocks = dev().space().stats().live_blocks;
  ASSERT_TRUE(b.resize(2 * page()));
  put(dev(), b.address(), bytes);
  const device_address at = b.address();
  const std::size_t reserved = dev().space().stats().reserved_bytes;
  ASSERT_TRUE(b.resize(5 * page()));
  EXPECT_EQ(b.address(), at);
  EXPECT_EQ(dev().space().stats().reserved_bytes, reserved + 3 * page());
  EXPECT_EQ(b.stats().relocations, 0u);
  EXPECT_EQ(dev().space().stats().live_blocks, blocks + 1);
  EXPECT_TRUE(holds(dev(), at, 2 * page(), 1));
  // Everything works across the seam.
  put(dev(), at, pattern(5 * page(), 2));
  ASSERT_TRUE(b.decommit(page(), 2 * page()));
  ASSERT_TRUE(b.commit(page(), 2 * page()));
  auto twin = b.alias(page(), 3 * page());
  ASSERT_TRUE(twin);
  put(dev(), twin->address(), pattern(3 * page(), 3));
  EXPECT_TRUE(holds(dev(), at + page(), 3 * page(), 3));
  const std::uint64_t generation = b.generation();
  ASSERT_TRUE(b.reserve(b.capacity() + page()));
  EXPECT_GT(b.generation(), generation);
}

TEST_F(placement, moves_its_pages_where_the_next_addresses_are_taken) {
  STILLMAP_NEEDS_HOSTCUDA();
  growable_buffer b = reserving(2);
  ASSERT_TRUE(b.resize(2 * page()));
  put(dev(), b.address(), pattern(2 * page(), 1));
  const device_address at = b.address();
  const auto wall = wall_behind(b);
  const std::uint64_t generation = b.generation();
  const driver_counts before = counts();
  ASSERT_TRUE(b.resize(5 * page()));
  const driver_counts spent = counts() - before;
  if (wall) {
    EXPECT_NE(b.address(), at);
    EXPECT_EQ(b.stats().relocations, 1u);
  }
  EXPECT_EQ(spent.bytes_on_device, 0u) << "not a byte is copied";
  EXPECT_EQ(spent[driver_call::MemCreate], 3u);
  EXPECT_EQ(b.stats().bytes_copied, 0u);
  EXPECT_GT(b.generation(), generation);
  EXPECT_TRUE(holds(dev(), b.address(), 2 * page(), 1));
  EXPECT_EQ(dev().space().stats().mapped_bytes, 5 * page());
}

TEST_F(placement, moving_on_a_stream_leaves_the_old_addresses_to_running_work) {
  growable_buffer b = reserving(2), sink = reserving(2);
  ASSERT_TRUE(b.resize(2 * page()));
  ASSERT_TRUE(sink.resize(2 * page()));
  put(dev(), b.address(), pattern(2 * page(), 1));
  const auto wall = wall_behind(b);
  if (!wall) GTEST_SKIP() << "the addresses behind are taken on this machine";
  const stream s = make_stream();
  testing::hold(s.get());
  {
    const context_guard guard(driver(), dev().context());
    ASSERT_TRUE(driver().copy_on_device_async(sink.address(), b.address(), 2 * page(), s.get()));
  }
  const device_address at = b.address();
  ASSERT_TRUE(b.resize(5 * page(), s));
  EXPECT_NE(b.address(), at);
  EXPECT_EQ(dev().space().mappings({at, 2 * page()}).size(), 2u) << "still there, retiring";
  testing::release(s.get());
  ASSERT_TRUE(s.synchronize());
  EXPECT_TRUE(holds(dev(), sink.address(), 2 * page(), 1));
  EXPECT_TRUE(holds(dev(), b.address(), 2 * page(), 1));
  EXPECT_EQ(dev().space().collect(), 2 * page());
  EXPECT_TRUE(holds(dev(), b.address(), 2 * page(), 1));
}

// Out of memory while moving: the address must be the old one, not a moved one with an error.
TEST_F(placement, a_move_that_runs_out_of_memory_does_not_happen) {
  STILLMAP_NEEDS_HOSTCUDA();
  growable_buffer b = reserving(2);
  ASSERT_TRUE(b.resize(2 * page()));
  put(dev(), b.address(), pattern(2 * page(), 1));
  const auto wall = wall_behind(b);
  const device_address at = b.address();
  leave_free(1);
  EXPECT_FALSE(b.resize(6 * page()));
  EXPECT_EQ(b.address(), at);
  EXPECT_EQ(b.reserved(), 2 * page());
  EXPECT_EQ(b.stats().relocations, 0u);
  EXPECT_TRUE(holds(dev(), at, 2 * page(), 1));
  EXPECT_EQ(dev().space().stats().reserved_bytes, 2 * page() + (wall ? page() : 0));
}

TEST_F(placement, sparse_pages_move_along) {
  growable_buffer b = reserving(4);
  ASSERT_TRUE(b.commit(2 * page(), page()));
  put(dev(), b.address() + 2 * page(), pattern(page(), 1));
  const auto wall = wall_behind(b);
  ASSERT_TRUE(b.resize(9 * page()));
  EXPECT_EQ(b.capacity(), 9 * page());
  EXPECT_TRUE(holds(dev(), b.address() + 2 * page(), page(), 1));
}

TEST_F(placement, stripes_its_pages_over_pools) {
  const auto other = *page_pool::create(dev());
  buffer_options options;
  options.reserve_bytes = 16 * page();
  options.pools = {dev().pool(), other};
  growable_buffer b = make(options);
  ASSERT_TRUE(b.resize(5 * page()));
  EXPECT_EQ(other->stats().created.bytes(), 2 * page());
  EXPECT_EQ(dev().pool()->stats().created.bytes(), 3 * page());
  put(dev(), b.address(), pattern(5 * page(), 1));
  EXPECT_TRUE(holds(dev(), b.address(), 5 * page(), 1));
  ASSERT_TRUE(b.resize(0));
  ASSERT_TRUE(b.shrink_to_fit());
  EXPECT_EQ(other->stats().free.bytes(), 2 * page()) << "each page goes home";
}

TEST_F(placement, stripes_over_devices_and_lets_peers_in) {
  if (*device::count() < 2) GTEST_SKIP() << "needs two devices";
  const device second = open_device(1);
  ASSERT_FALSE(dev().capabilities().peers.empty());
  buffer_options options;
  options.reserve_bytes = 16 * page();
  options.pools = {dev().pool(), second.pool()};
  options.peer_devices = {1};
  growable_buffer b = make(options);
  ASSERT_TRUE(b.resize(4 * page())) << "two pages on each";
  EXPECT_EQ(second.pool()->stats().created.bytes(), 2 * page());
  put(dev(), b.address(), pattern(4 * page(), 1));
  EXPECT_TRUE(holds(second, b.address(), 4 * page(), 1)) << "read by the other device";
  put(second, b.address(), pattern(4 * page(), 2));
  EXPECT_TRUE(holds(dev(), b.address(), 4 * page(), 2));
  for (const mapping_record &m : dev().space().mappings(b.range())) {
    EXPECT_EQ(m.access.size(), 2u);
  }
  std::size_t elsewhere = 0;
  for (const mapping_record &m : dev().space().mappings(b.range())) {
    elsewhere += m.backing->properties().location == on_device(1) ? 1 : 0;
  }
  EXPECT_EQ(elsewhere, 2u);
}

TEST_F(placement, only_peers_can_be_let_in) {
  buffer_options options;
  options.peer_devices = {42};
  EXPECT_TRUE(fails_with(outcome(growable_buffer::create(dev(), options)), errc::invalid_argument,
                         "growable_buffer::create", 42, 0));
  options.peer_devices = {-1};
  EXPECT_FALSE(growable_buffer::create(dev(), options));
  options.peer_devices = {0};
  EXPECT_TRUE(growable_buffer::create(dev(), options)) << "itself is no news";
}

TEST_F(placement, lives_on_the_host_where_asked) {
  if (!dev().capabilities().host_numa) GTEST_SKIP() << "this driver cannot map host memory";
  page_pool_options where;
  where.location = on_host_numa(0);
  const auto pool = page_pool::create(dev(), where);
  ASSERT_TRUE(pool) << pool.error().message();
  buffer_options options;
  options.pools = {*pool};
  options.reserve_bytes = 16 * (*pool)->page_bytes();
  growable_buffer b = make(options);
  ASSERT_TRUE(b.resize(3 * (*pool)->page_bytes()));
  put(dev(), b.address(), pattern(b.size(), 1));
  EXPECT_TRUE(holds(dev(), b.address(), b.size(), 1));
  EXPECT_EQ(dev().space().mappings(b.range()).at(0).backing->properties().location,
            on_host_numa(0));
}

TEST_F(placement, host_pages_are_refused_where_they_cannot_be) {
  if (dev().capabilities().host_numa) GTEST_SKIP() << "this driver maps host memory";
  page_pool_options where;
  where.location = on_host_numa(0);
  EXPECT_TRUE(fails_with(outcome(page_pool::create(dev(), where)), errc::not_supported,
                         "page_pool::create"));
}

TEST_F(placement, reserves_the_devices_memory_unless_told) {
  const growable_buffer b = make();
  EXPECT_GE(b.reserved(), std::min<std::size_t>(dev().total_memory().bytes(),
                                                dev().capabilities().largest_reservation / 2));
  EXPECT_EQ(b.mapped_bytes(), 0u);
}

// Regression: the 933rd took the last addresses, because each had as many as the device has memory.
TEST_F(placement, many_buffers_share_the_addresses) {
  if (testing::sanitizer() == "thread") GTEST_SKIP() << "ThreadSanitizer takes most addresses";
  std::vector<growable_buffer> many;
  for (int i = 0; i < 1500; ++i) many.push_back(make());
  const std::size_t largest = dev().capabilities().largest_reservation;
  EXPECT_LT(dev().space().stats().reserved_bytes, 8 * largest);
  EXPECT_LE(many.back().reserved(), largest / 1000);
  EXPECT_TRUE(many.back().resize(2 * page()));
  buffer_options options;
  options.reserve_bytes = many.front().reserved();
  EXPECT_GE(make(options).reserved(), options.reserve_bytes)
      << "what is stated is not made smaller";
}

TEST_F(placement, many_forks_share_the_addresses_too) {
  growable_buffer b = make();
  ASSERT_TRUE(b.resize(3 * page()));
  std::vector<growable_buffer> copies;
  for (int i = 0; i < 40; ++i) copies.push_back(std::move(b.fork().value()));
  EXPECT_LT(copies.back().reserved(), b.reserved());
  EXPECT_EQ(copies.back().size(), 3 * page());
  buffer_options options;
  options.reserve_bytes = b.reserved();
  growable_buffer stated = make(options);
  EXPECT_EQ(stated.fork()->reserved(), stated.reserved());
}

// A wish that addresses are too few for is made smaller, and leaves most of them to others.
TEST_F(placement, a_default_takes_a_small_part_of_few_addresses) {
  if (!on_hostcuda()) GTEST_SKIP() << "needs hostcuda's switches";
  const std::size_t ample = make().reserved();
  testing::hostcuda_control::fail("cuMemAddressReserve", 1, CUDA_ERROR_OUT_OF_MEMORY);
  const growable_buffer b = make();
  EXPECT_GE(b.reserved(), page());
  EXPECT_LE(b.reserved(), ample / 16 + page());
  buffer_options options;
  options.reserve_bytes = 64 * page();
  testing::hostcuda_control::fail("cuMemAddressReserve", 1, CUDA_ERROR_OUT_OF_MEMORY);
  const auto refused = growable_buffer::create(dev(), options);
  ASSERT_FALSE(refused) << "it is a demand";
  EXPECT_TRUE(refused.error().is(errc::address_space_exhausted));
  EXPECT_EQ(refused.error().value, 64 * page());
  EXPECT_EQ(refused.error().limit, 63 * page()) << "every other size was to be had";
}

class ahead : public placement {
 protected:
  // Until the background has nothing left to do for `b`.
  void settle(const growable_buffer &b, std::size_t capacity) const {
    while (b.capacity() < capacity && b.stats().ahead_failures == 0) std::this_thread::yield();
  }
};

TEST_F(ahead, growth_is_there_before_it_is_asked_for) {
  buffer_options options;
  options.reserve_bytes = 64 * page();
  options.map_ahead_bytes = 4 * page();
  growable_buffer b = make(options);
  ASSERT_TRUE(b.resize(page()));
  settle(b, 5 * page());
  EXPECT_EQ(b.capacity(), 5 * page());
  EXPECT_EQ(b.size(), page());
  EXPECT_EQ(b.stats().ahead_growths, 1u);
  const std::uint64_t growths = b.stats().growths;
  // The resizing thread calls nothing; what is called meanwhile is the background's.
  ASSERT_TRUE(b.resize(4 * page()));
  EXPECT_EQ(b.stats().growths, growths);
  put(dev(), b.address(), pattern(4 * page(), 1));
  settle(b, 8 * page());
  EXPECT_EQ(b.capacity(), 8 * page());
  EXPECT_TRUE(holds(dev(), b.address(), 4 * page(), 1));
}

TEST_F(ahead, stops_at_the_reservation_and_does_not_move_the_buffer) {
  buffer_options options;
  options.reserve_bytes = 4 * page();
  options.map_ahead_bytes = 16 * page();
  growable_buffer b = make(options);
  const device_address at = b.address();
  ASSERT_TRUE(b.resize(page()));
  settle(b, 4 * page());
  EXPECT_EQ(b.capacity(), 4 * page());
  EXPECT_EQ(b.address(), at);
}

TEST_F(ahead, a_failure_is_counted_and_the_next_resize_tries_itself) {
  STILLMAP_NEEDS_HOSTCUDA();
  buffer_options options;
  options.reserve_bytes = 64 * page();
  options.map_ahead_bytes = 4 * page();
  growable_buffer b = make(options);
  leave_free(2);
  ASSERT_TRUE(b.resize(page()));
  while (b.stats().ahead_failures == 0) std::this_thread::yield();
  EXPECT_EQ(b.capacity(), page());
  testing::hostcuda_control::occupy(0, 0);
  ASSERT_TRUE(b.resize(2 * page()));
  EXPECT_GE(b.capacity(), 2 * page());
}

TEST_F(ahead, closing_waits_for_the_background) {
  for (int i = 0; i < 20; ++i) {
    buffer_options options;
    options.reserve_bytes = 64 * page();
    options.map_ahead_bytes = 4 * page();
    growable_buffer b = make(options);
    ASSERT_TRUE(b.resize(page()));
    if (i % 2 == 0) {
      ASSERT_TRUE(b.close(fence()));
    }
  }
  EXPECT_EQ(dev().space().stats().live_mappings, 0u);
}

class lifetime : public testing::buffer_test {};

TEST_F(lifetime, a_buffer_keeps_the_device_it_is_on) {
  std::optional<growable_buffer> b = make();
  const std::size_t bytes = page();
  ASSERT_TRUE(b->resize(bytes));
  put(dev(), b->address(), pattern(bytes, 1));
  close_device();
  EXPECT_TRUE(holds(b->device(), b->address(), bytes, 1));
  ASSERT_TRUE(b->resize(2 * bytes));
  b.reset();
  EXPECT_EQ(leftovers(), "");
}

TEST_F(lifetime, a_fence_outlives_everything_else) {
  fence f;
  {
    const stream s = make_stream();
    f = after(s);
    growable_buffer b = make();
    ASSERT_TRUE(b.resize(page()));
    ASSERT_TRUE(b.close(f));
  }
  close_device();
  EXPECT_TRUE(f.wait());
  EXPECT_TRUE(*f.passed());
}

TEST_F(lifetime, a_stream_outlives_its_device_handle) {
  std::optional<stream> s = make_stream();
  close_device();
  EXPECT_TRUE(s->synchronize());
  s.reset();
  EXPECT_EQ(leftovers(), "");
}

TEST_F(lifetime, a_moved_from_device_is_the_device_still) {
  device a = open_device();
  const device b = std::move(a);
  EXPECT_EQ(a, b);  // NOLINT: that is what is tested
  EXPECT_TRUE(growable_buffer::create(a));
}

}  // namespace
}  // namespace stillmap
