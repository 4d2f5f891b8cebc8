// Layouts: their sums, and each way in which one that another process sent can be inconsistent.
#include "stillmap/checkpoint/common/layout.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/support/buffer_test.h"
#include "tests/support/stream_gate.h"

namespace stillmap::checkpoint {
namespace {

using stillmap::testing::fails_with;
using stillmap::testing::outcome;

constexpr std::size_t a_page = 2 << 20;
constexpr std::uint64_t base = 1ull << 40;

constexpr device_address slot(std::uint64_t n) {
  return device_address(base + n * a_page);
}

// Two blocks of four pages, side by side: one page twice in the first, another in each.
memory_layout sample() {
  memory_layout l;
  l.blocks = {{{slot(0), 4 * a_page}, "weights"}, {{slot(4), 4 * a_page}, "cache"}};
  l.pages.assign(2, {a_page, {}});
  l.pages.push_back({2 * a_page, {}});
  l.access = {{{on_device(memory_layout::own_device), access_mode::read_write}},
              {{on_device(1), access_mode::read_write}}};
  l.places = {{slot(0), 0, 0}, {slot(3), 0, 0}, {slot(4), 1, 0}, {slot(6), 2, 0}};
  return l;
}

TEST(memory_layout, sums) {
  const memory_layout l = sample();
  EXPECT_EQ(l.bytes(), 4 * a_page);
  EXPECT_EQ(l.mapped_bytes({slot(0), 8 * a_page}), 5 * a_page);
  EXPECT_EQ(l.mapped_bytes({slot(0), 4 * a_page}), 2 * a_page);
  EXPECT_EQ(l.mapped_bytes({slot(3), 2 * a_page}), 2 * a_page);
  EXPECT_EQ(l.mapped_bytes({slot(1), 2 * a_page}), 0u);
  EXPECT_EQ(l.tagged("cache"), (std::vector<virtual_range>{{slot(4), 4 * a_page}}));
  EXPECT_TRUE(l.tagged("other").empty());
}

TEST(memory_layout, a_consistent_one_passes) {
  const status s = check(sample(), a_page);
  EXPECT_TRUE(s) << s.error().message();
  EXPECT_TRUE(check({}, a_page));
}

struct damage {
  const char *what;
  void (*act)(memory_layout &);
  std::uint64_t value;
};

TEST(memory_layout, each_inconsistency_is_named) {
  const damage all[] = {
      {"a block with part of a page", [](auto &l) { l.blocks[1].range.bytes -= 4096; },
       slot(4).value()},
      {"an empty block", [](auto &l) { l.blocks[1].range.bytes = 0; }, slot(4).value()},
      {"a block that begins within a page",
       [](auto &l) { l.blocks[0].range.begin = slot(0) + 4096; }, slot(0).value() + 4096},
      {"overlapping blocks", [](auto &l) { l.blocks[0].range.bytes = 5 * a_page; },
       slot(4).value()},
      {"blocks out of order", [](auto &l) { std::swap(l.blocks[0], l.blocks[1]); },
       slot(0).value()},
      {"a page of no size", [](auto &l) { l.pages[1].bytes = 0; }, 0},
      {"a page of half a page", [](auto &l) { l.pages[1].bytes = a_page / 2; }, a_page / 2},
      {"an unknown page", [](auto &l) { l.places[1].page = 3; }, slot(3).value()},
      {"unknown access", [](auto &l) { l.places[1].access = 2; }, slot(3).value()},
      {"a place within a page", [](auto &l) { l.places[2].at = slot(4) + 4096; },
       slot(4).value() + 4096},
      {"a place before all blocks", [](auto &l) { l.places[0].at = device_address(base - a_page); },
       base - a_page},
      {"a place behind all blocks", [](auto &l) { l.places[3].at = slot(8); }, slot(8).value()},
      {"a place that leaves its block", [](auto &l) { l.places[3].at = slot(7); }, slot(7).value()},
      {"overlapping places", [](auto &l) { l.places[1].at = slot(0); }, slot(0).value()},
      {"places out of order", [](auto &l) { std::swap(l.places[2], l.places[3]); },
       slot(4).value()},
      {"a page without a place", [](auto &l) { l.places.erase(l.places.begin() + 2); }, 1},
  };
  for (const damage &d : all) {
    memory_layout l = sample();
    d.act(l);
    const status s = check(l, a_page);
    ASSERT_FALSE(s) << d.what;
    EXPECT_TRUE(s.error().is(errc::corrupt)) << d.what;
    EXPECT_EQ(s.error().value, d.value) << d.what << ": " << s.error().message();
  }
}

TEST(memory_layout, every_page_needs_a_place_that_the_device_may_read) {
  memory_layout l = sample();
  const auto all = readable_addresses(l);
  ASSERT_TRUE(all);
  EXPECT_EQ(*all, (std::vector<device_address>{slot(0), slot(4), slot(6)}));
  l.places[0].access = 1;  // another device's; its second place serves
  EXPECT_EQ(readable_addresses(l)->front(), slot(3));
  l.places[2].access = 1;
  const auto no = readable_addresses(l);
  ASSERT_FALSE(no);
  EXPECT_TRUE(no.error().is(errc::not_supported));
  EXPECT_EQ(no.error().value, slot(4).value());
  EXPECT_EQ(no.error().limit, 0u);
  l = sample();
  l.access[0][0].mode = access_mode::none;
  EXPECT_FALSE(readable_addresses(l));
  l.access[0][0].mode = access_mode::read;
  EXPECT_TRUE(readable_addresses(l));
}

class described : public stillmap::testing::buffer_test {};

// Their pages are about to leave: they are no part of the memory.
TEST_F(described, retiring_mappings_are_waited_for) {
  STILLMAP_NEEDS_VMM();
  STILLMAP_NEEDS_HOSTCUDA();
  growable_buffer b = filled(3, "b", 1);
  const stream busy = make_stream();
  stillmap::testing::hold(busy.get());
  ASSERT_TRUE(b.resize(1 << 20));
  ASSERT_TRUE(b.shrink_to_fit(after(busy)));
  ASSERT_EQ(dev().space().stats().retiring_mappings, 2u);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    stillmap::testing::release(busy.get());
  });
  const std::vector<std::string> tags{"b"};
  const auto m = describe(dev(), tags);
  later.join();
  ASSERT_TRUE(m) << m.error().message();
  EXPECT_EQ(m->layout.places.size(), 1u);
  EXPECT_EQ(m->layout.bytes(), page());
  EXPECT_EQ(dev().space().stats().retiring_mappings, 0u);
}

}  // namespace
}  // namespace stillmap::checkpoint
