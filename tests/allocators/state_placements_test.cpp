// Placements that are found again by what was live.
#include "stillmap/allocators/internal/state_placements.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "tests/support/host_memory.h"

namespace stillmap {
namespace {

constexpr std::uint64_t page = std::uint64_t{2} << 20;
using found = std::array<std::uint64_t, 2>;

TEST(state_placements, knows_nothing_in_the_beginning) {
  state_placements p;
  EXPECT_EQ(p.find(512, 0, 0), (found{0, 0}));
  EXPECT_EQ(p.host_bytes(), 0u);
}

TEST(state_placements, finds_what_was_asked_for_with_the_same_addresses_in_use) {
  state_placements p;
  p.add(page, 1000);
  p.find(512, 1000, 1);
  p.remember(7 * page, 512);
  p.add(2 * page, 3000);
  EXPECT_EQ(p.find(512, 4000, 2), (found{0, 0}));
  EXPECT_EQ(p.find(512, 1000, 1), (found{0, 7 * page})) << "as much was live, elsewhere";
  p.remove(page, 1000);
  p.add(page, 1000);
  p.remove(2 * page, 3000);
  EXPECT_EQ(p.find(512, 9, 9), (found{7 * page, 0})) << "in whatever order they came";
  EXPECT_EQ(p.find(1024, 1000, 1), (found{0, 0})) << "another size";
}

TEST(state_placements, the_latest_counts) {
  state_placements p;
  for (const std::uint64_t at : {3 * page, 4 * page}) {
    p.find(512, 0, 0);
    p.remember(at, 512);
  }
  EXPECT_EQ(p.find(512, 0, 0), (found{4 * page, 4 * page}));
}

// Another thread asked in between, or the block became a slab.
TEST(state_placements, an_extent_of_another_size_is_none) {
  state_placements p;
  p.find(512, 0, 0);
  p.remember(3 * page, 1024);
  EXPECT_EQ(p.find(512, 0, 0), (found{0, 0}));
  EXPECT_EQ(p.find(1024, 0, 0), (found{0, 0}));
}

TEST(state_placements, an_iteration_of_a_hundred_thousand_requests_fits) {
  state_placements p;
  for (std::uint64_t i = 0; i < 100000; ++i) {
    p.find(512, i, 1);
    p.remember((i + 1) * page, 512);
    p.add((i + 1) * page, 512);
  }
  for (std::uint64_t i = 0; i < 100000; ++i) p.remove((i + 1) * page, 512);
  for (std::uint64_t i = 0; i < 100000; ++i) {
    ASSERT_EQ(p.find(512, i, 1), (found{(i + 1) * page, (i + 1) * page}));
    p.add((i + 1) * page, 512);
  }
}

TEST(state_placements, new_requests_for_ever_take_bounded_memory) {
  state_placements p;
  for (std::uint64_t i = 0; i < 1000000; ++i) {
    p.find(512, i, 1);
    p.remember((i + 1) * page, 512);
  }
  EXPECT_LE(p.host_bytes(), std::size_t{8} << 20);
  EXPECT_EQ(p.find(512, 999999, 1)[1], 1000000 * page);
  p.forget_all();
  EXPECT_EQ(p.host_bytes(), 0u);
  EXPECT_EQ(p.find(512, 999999, 1), (found{0, 0}));
}

TEST(state_placements, without_host_memory_it_keeps_what_it_has) {
  state_placements p;
  p.find(512, 0, 0);
  {
    const testing::fail_host_allocation none(0, true);
    p.remember(page, 512);
    EXPECT_TRUE(none.happened());
  }
  EXPECT_EQ(p.find(512, 0, 0), (found{0, 0}));
  const testing::fail_host_allocation none(1, true);
  for (std::uint64_t i = 0; i < 2000; ++i) {
    p.find(512, i, 1);
    p.remember((i + 1) * page, 512);
  }
  EXPECT_TRUE(none.happened());
  EXPECT_EQ(p.find(512, 5, 1)[1], 6 * page);
  EXPECT_EQ(p.find(512, 1999, 1)[1], 0u);
}

}  // namespace
}  // namespace stillmap
