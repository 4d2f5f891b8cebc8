// Whether the gaps that blocks leave at the ends of pages will be filled.
#include "stillmap/allocators/internal/size_mix.h"

#include <gtest/gtest.h>

#include <random>

namespace stillmap {
namespace {

constexpr std::uint64_t kib = 1024, mib = kib * kib;

TEST(size_mix, nothing_is_known_at_first) {
  const size_mix none;
  for (const std::uint64_t gap : {kib, 64 * kib, mib}) EXPECT_FALSE(none.fills(gap, 2 * mib));
}

TEST(size_mix, blocks_of_one_size_fill_no_gap_that_is_smaller) {
  size_mix mix;
  for (int i = 0; i < 1000; ++i) mix.add(700 * kib);
  EXPECT_FALSE(mix.fills(600 * kib, 2 * mib));
  EXPECT_TRUE(mix.fills(800 * kib, 2 * mib));
  for (int i = 0; i < 50; ++i) mix.add(20 * kib);
  EXPECT_FALSE(mix.fills(600 * kib, 2 * mib)) << "these are too few";
}

TEST(size_mix, blocks_of_many_sizes_fill_gaps) {
  size_mix mix;
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) mix.add(16 * kib + random() % (496 * kib));
  EXPECT_FALSE(mix.fills(10 * kib, 2 * mib)) << "none is so small";
  for (const std::uint64_t gap : {64 * kib, 128 * kib, 400 * kib}) {
    EXPECT_TRUE(mix.fills(gap, 2 * mib)) << gap / kib << " KiB";
  }
}

TEST(size_mix, recent_blocks_count_more) {
  size_mix mix;
  for (int i = 0; i < 10000; ++i) mix.add(700 * kib);
  ASSERT_FALSE(mix.fills(200 * kib, 2 * mib));
  for (int i = 0; i < 10000; ++i) mix.add(100 * kib);
  EXPECT_TRUE(mix.fills(200 * kib, 2 * mib));
}

}  // namespace
}  // namespace stillmap
