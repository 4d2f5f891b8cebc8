// The ledger where two driver calls fail in a row, and where reservations that share a table of its index
// come and go.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/remap.h"
#include "tests/support/buffer_test.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using testing::hostcuda_control::fail;
using testing::hostcuda_control::stop_failing;

class ledger_test : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    STILLMAP_NEEDS_HOSTCUDA();
  }
  address_space &space() const { return dev().space(); }
  static std::vector<access_grant> read_write() {
    return {{on_device(0), access_mode::read_write}};
  }
  // Maps two pages, leaves one out, and so on.
  void map_runs(device_address at, std::size_t runs) const {
    std::vector<page_ptr> pages;
    ASSERT_TRUE(dev().pool()->acquire(2 * runs, pages));
    remap_plan plan(read_write());
    for (std::size_t i = 0; i < 2 * runs; ++i) {
      plan.map(at + (3 * (i / 2) + i % 2) * page(), std::move(pages[i]));
    }
    ASSERT_TRUE(space().apply(std::move(plan)));
  }
};

enum class how { collected, unmapped, retired_after_use };

// An unmapping fails, and mapping again may fail, too: that page is gone, and the others stay.
TEST_F(ledger_test, a_removal_whose_undo_fails_keeps_the_rest) {
  expect_unreturnable();
  const address_space_stats before = space().stats();
  const auto attempt = [&](std::size_t runs, std::uint64_t unmap, std::uint64_t map, how kind) {
    SCOPED_TRACE(::testing::Message() << runs << ' ' << unmap << ' ' << map << ' ' << int(kind));
    const auto block = space().reserve(3 * runs * page(), 0, {}, "removed");
    ASSERT_TRUE(block);
    const virtual_range whole = (*block)->range();
    ASSERT_NO_FATAL_FAILURE(map_runs(whole.begin, runs));
    const stream s = make_stream();
    fail("cuMemUnmap", unmap, CUDA_ERROR_UNKNOWN);
    if (map != 0) fail("cuMemMap", map, CUDA_ERROR_UNKNOWN);
    if (kind == how::collected) {
      testing::hold(s.get());
      ASSERT_TRUE(space().retire(*block, whole, after(s)));
      testing::release(s.get());
      ASSERT_TRUE(s.synchronize());
      space().collect(true);
    } else {
      EXPECT_FALSE(kind == how::unmapped ? space().unmap(whole)
                                         : space().retire(*block, whole, {}));
    }
    stop_failing("cuMemUnmap");
    stop_failing("cuMemMap");
    const address_space_stats now = space().stats();
    const std::size_t left = space().mappings(whole).size();
    EXPECT_EQ(now.live_mappings - before.live_mappings, left);
    EXPECT_EQ(now.mapped_bytes - before.mapped_bytes, left * page());
    EXPECT_EQ(now.retiring_mappings, kind == how::collected ? left : 0u);
    EXPECT_TRUE(kind == how::collected ? space().collect_range(whole) : space().unmap(whole));
    EXPECT_TRUE(space().mappings(whole).empty());
  };
  for (std::size_t runs = 2; runs <= 3; ++runs) {
    for (std::uint64_t unmap = 1; unmap <= runs; ++unmap) {
      for (std::uint64_t map = 0; map <= 2 * unmap; ++map) {
        for (const how kind : {how::collected, how::unmapped, how::retired_after_use}) {
          attempt(runs, unmap, map, kind);
        }
      }
    }
  }
  const address_space_stats now = space().stats();
  EXPECT_EQ(now.live_mappings, before.live_mappings);
  EXPECT_EQ(now.mapped_bytes, before.mapped_bytes);
  EXPECT_EQ(now.live_blocks, before.live_blocks);
}

// Regression: the suspended place held the page, and giving it up dropped the page under the ledger's
// lock, for ever where its pool kept none.
TEST_F(ledger_test, a_page_that_is_stuck_where_it_was_to_be_resumed_can_be_unmapped) {
  expect_unreturnable();
  const auto pool = page_pool::create(dev(), {.keep_free = 0});
  const auto block = space().reserve(4 * page(), 0, {}, "stuck");
  ASSERT_TRUE(pool && block);
  const virtual_range place{(*block)->range().begin, page()};
  std::vector<page_ptr> pages;
  ASSERT_TRUE((*pool)->acquire(2, pages));
  remap_plan mapped(read_write()), suspended({}), resumed({});
  mapped.map(place.begin, std::move(pages[0]));
  suspended.suspend(place, 7);
  resumed.resume(place.begin, std::move(pages[1]), 7);
  ASSERT_TRUE(space().apply(std::move(mapped)));
  ASSERT_TRUE(space().apply(std::move(suspended)));
  fail("cuMemSetAccess", 1, CUDA_ERROR_UNKNOWN);
  fail("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(space().apply(std::move(resumed)));
  stop_failing("cuMemSetAccess");
  stop_failing("cuMemUnmap");
  EXPECT_EQ(space().stats().suspended_bytes, 0u);
  EXPECT_EQ(space().mappings(place).size(), 1u);
  EXPECT_TRUE(space().unmap(place));
  EXPECT_TRUE(space().mappings(place).empty());
  EXPECT_EQ((*pool)->stats().created.bytes(), 0u);
}

// A reservation that ends gives up its tables, but for those that others share.
TEST_F(ledger_test, neighbours_that_come_and_go_do_not_disturb_plans) {
  const std::size_t blocks = space().stats().live_blocks;
  std::atomic<bool> wrong{false};
  const auto expect = [&](bool holds) { wrong = wrong || !holds; };
  const auto run = [&](unsigned seed) {
    std::mt19937 random(seed);
    std::vector<page_ptr> pages;
    expect(dev().pool()->acquire(3, pages).has_value());
    for (int i = 0; i < 400 && !wrong; ++i) {
      const auto block = space().reserve((3 + random() % 6) * page(), 0, {}, "neighbour");
      if (!block) return expect(false);
      const virtual_range range = (*block)->range();
      for (int again = 0; again < 2; ++again) {
        remap_plan plan(read_write());
        for (std::size_t p = 0; p < pages.size(); ++p) plan.map(range.begin + p * page(), pages[p]);
        expect(space().apply(std::move(plan)).has_value());
        expect(space().mappings(range).size() == pages.size());
        expect(random() % 2 != 0 ? space().unmap(range).has_value()
                                 : space().retire(*block, range, {}).has_value());
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) threads.emplace_back(run, seed);
  for (std::thread &t : threads) t.join();
  EXPECT_FALSE(wrong);
  EXPECT_EQ(space().stats().live_mappings, 0u);
  EXPECT_EQ(space().stats().live_blocks, blocks);
}

// A query does not hold, for a moment, a reservation that it does not return: its holder may let it go just
// then, and it would end under the ledger's lock, which it takes to end.
TEST_F(ledger_test, a_query_behind_a_reservation_does_not_become_its_last_holder) {
  std::atomic<std::uint64_t> behind{0};
  std::jthread asks([&](const std::stop_token &stop) {
    while (!stop.stop_requested()) static_cast<void>(space().block_at(device_address(behind)));
  });
  for (int i = 0; i < 5'000; ++i) {
    const auto block = space().reserve(page(), 0, {}, "ends at once");
    if (!block) return ADD_FAILURE() << block.error().message();
    behind = (*block)->range().end().value();
  }
}

}  // namespace
}  // namespace stillmap
