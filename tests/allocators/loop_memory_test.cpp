// Places that are found again by what was in use.
#include "stillmap/allocators/engine/loop_memory.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "tests/support/host_memory.h"

namespace stillmap {
namespace {

constexpr std::uint64_t page = std::uint64_t{2} << 20;
using found = std::array<std::uint64_t, 2>;

class loop_memory_test : public ::testing::Test {
 protected:
  extent &at(std::uint64_t begin, std::uint64_t bytes) {
    extent &s = extents_.emplace_back();
    s.begin = begin;
    s.bytes = bytes;
    return s;
  }
  // Where the request was with the same addresses in use, and with the same amount; 0: unknown.
  static found search(loop_memory &m, std::uint64_t bytes, std::uint64_t live_bytes,
                      std::uint64_t live_blocks) {
    m.begin_search(bytes, live_bytes, live_blocks);
    const auto *const by_addresses = m.find(loop_memory::by::addresses);
    const auto *const by_amount = m.find(loop_memory::by::amount);
    return {by_addresses != nullptr ? by_addresses->begin : 0,
            by_amount != nullptr ? by_amount->begin : 0};
  }
  std::deque<extent> extents_;
  loop_memory places_;
};

TEST_F(loop_memory_test, knows_nothing_in_the_beginning) {
  EXPECT_EQ(search(places_, 512, 0, 0), (found{0, 0}));
  EXPECT_EQ(places_.expected(512), 0u);
  EXPECT_EQ(places_.host_bytes(), 0u);
}

TEST_F(loop_memory_test, finds_what_was_asked_for_with_the_same_addresses_in_use) {
  extent &one = at(page, 1000), &two = at(2 * page, 3000);
  places_.add(one);
  search(places_, 512, 1000, 1);
  places_.remember(at(7 * page, 512));
  places_.add(two);
  EXPECT_EQ(search(places_, 512, 4000, 2), (found{0, 0}));
  EXPECT_EQ(search(places_, 512, 1000, 1), (found{0, 7 * page})) << "as much was live, elsewhere";
  places_.remove(one);
  places_.add(one);
  places_.remove(two);
  EXPECT_EQ(search(places_, 512, 9, 9), (found{7 * page, 0})) << "in whatever order they came";
  EXPECT_EQ(search(places_, 1024, 1000, 1), (found{0, 0})) << "another size";
}

TEST_F(loop_memory_test, the_latest_counts) {
  for (const std::uint64_t begin : {3 * page, 4 * page}) {
    search(places_, 512, 0, 0);
    places_.remember(at(begin, 512));
  }
  EXPECT_EQ(search(places_, 512, 0, 0), (found{4 * page, 4 * page}));
}

// Another thread asked in between, or the block became a slab.
TEST_F(loop_memory_test, an_extent_of_another_size_is_none) {
  search(places_, 512, 0, 0);
  places_.remember(at(3 * page, 1024));
  EXPECT_EQ(search(places_, 512, 0, 0), (found{0, 0}));
  EXPECT_EQ(search(places_, 1024, 0, 0), (found{0, 0}));
}

TEST_F(loop_memory_test, an_extent_is_remembered_once_for_a_search) {
  search(places_, 512, 0, 0);
  places_.remember(at(3 * page, 512));
  places_.remember(at(4 * page, 512));
  EXPECT_EQ(search(places_, 512, 0, 0), (found{3 * page, 3 * page}));
}

// The second iteration is served without a search.
TEST_F(loop_memory_test, what_came_next_is_expected) {
  extent &one = at(page, 512), &two = at(2 * page, 1024);
  for (int i = 0; i < 2; ++i) {
    search(places_, 512, 0, 0);
    places_.remember(one);
    places_.add(one);
    search(places_, 1024, 512, 1);
    places_.remember(two);
    places_.add(two);
    places_.remove(two);
    places_.remove(one);
  }
  EXPECT_EQ(places_.expected(512), page);
  EXPECT_EQ(places_.expected(1024), 0u) << "not that next";
  places_.take_expected();
  EXPECT_EQ(places_.expected(1024), 0u) << "the first is not in use yet";
  places_.add_again(one);
  EXPECT_EQ(places_.expected(1024), 2 * page);
  EXPECT_EQ(places_.expected(512), 0u);
}

TEST_F(loop_memory_test, an_iteration_of_a_hundred_thousand_requests_fits) {
  for (std::uint64_t i = 0; i < 100000; ++i) {
    search(places_, 512, i, 1);
    places_.remember(at((i + 1) * page, 512));
    places_.add(extents_.back());
  }
  for (extent &s : extents_) places_.remove(s);
  for (std::uint64_t i = 0; i < 100000; ++i) {
    ASSERT_EQ(search(places_, 512, i, 1), (found{(i + 1) * page, (i + 1) * page}));
    places_.add(extents_[i]);
  }
}

TEST_F(loop_memory_test, new_requests_for_ever_take_bounded_memory) {
  extent &s = at(0, 512);
  for (std::uint64_t i = 0; i < 1000000; ++i) {
    search(places_, 512, i, 1);
    s.begin = (i + 1) * page;
    places_.remember(s);
  }
  EXPECT_LE(places_.host_bytes(), std::size_t{16} << 20);
  EXPECT_EQ(search(places_, 512, 999999, 1)[1], 1000000 * page);
  places_.forget_all();
  EXPECT_EQ(places_.host_bytes(), 0u);
  EXPECT_EQ(search(places_, 512, 999999, 1), (found{0, 0}));
}

TEST_F(loop_memory_test, without_host_memory_it_keeps_what_it_has) {
  extent &s = at(page, 512);
  search(places_, 512, 0, 0);
  {
    const testing::fail_host_allocation none(0, true);
    places_.remember(s);
    EXPECT_TRUE(none.happened());
  }
  EXPECT_EQ(search(places_, 512, 0, 0), (found{0, 0}));
  const testing::fail_host_allocation none(1, true);
  for (std::uint64_t i = 0; i < 2000; ++i) {
    search(places_, 512, i, 1);
    s.begin = (i + 1) * page;
    places_.remember(s);
  }
  EXPECT_TRUE(none.happened());
  EXPECT_EQ(search(places_, 512, 5, 1)[1], 6 * page);
  EXPECT_EQ(search(places_, 512, 1999, 1)[1], 0u);
}

}  // namespace
}  // namespace stillmap
