#include "stillmap/vmm/base/units.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <type_traits>

namespace stillmap {
namespace {

using namespace literals;

// What must not compile by accident.
static_assert(!std::is_convertible_v<std::uint64_t, device_address>);
static_assert(!std::is_convertible_v<device_address, std::uint64_t>);
static_assert(!std::is_convertible_v<std::size_t, physical_size>);
static_assert(!std::is_convertible_v<physical_size, std::size_t>);
static_assert(!std::is_convertible_v<device_address, physical_size>);
static_assert(!std::is_convertible_v<device_address, bool>);
static_assert(std::is_trivially_copyable_v<device_address>);

virtual_range range(std::uint64_t begin, std::size_t bytes) {
  return {device_address(begin), bytes};
}

TEST(units, addresses_count_in_bytes) {
  const device_address a(0x1000);
  EXPECT_EQ((a + 0x234).value(), 0x1234u);
  EXPECT_EQ((a + 0x234) - a, 0x234u);
  EXPECT_EQ(a.pointer(), reinterpret_cast<void *>(0x1000));
  EXPECT_FALSE(device_address());
  EXPECT_TRUE(static_cast<bool>(a));
  EXPECT_LT(a, a + 1);
}

TEST(units, a_range_contains_its_begin_and_not_its_end) {
  const virtual_range r = range(100, 10);
  EXPECT_TRUE(r.contains(device_address(100)));
  EXPECT_TRUE(r.contains(device_address(109)));
  EXPECT_FALSE(r.contains(device_address(110)));
  EXPECT_FALSE(r.contains(device_address(99)));
  EXPECT_TRUE(r.contains(r));
  EXPECT_TRUE(r.contains(range(103, 2)));
  EXPECT_FALSE(r.contains(range(103, 8)));
  EXPECT_FALSE(r.contains(range(99, 2)));
}

TEST(units, ranges_that_only_touch_do_not_overlap) {
  EXPECT_FALSE(range(100, 10).overlaps(range(110, 10)));
  EXPECT_FALSE(range(110, 10).overlaps(range(100, 10)));
  EXPECT_TRUE(range(100, 10).overlaps(range(109, 1)));
  EXPECT_TRUE(range(100, 10).overlaps(range(50, 100)));
}

TEST(units, an_empty_range_is_nowhere) {
  const virtual_range empty = range(105, 0);
  EXPECT_TRUE(empty.empty());
  EXPECT_FALSE(empty.contains(device_address(105)));
  EXPECT_FALSE(range(100, 10).overlaps(empty));
  EXPECT_FALSE(empty.overlaps(range(100, 10)));
  EXPECT_FALSE(range(100, 10).contains(empty));
}

TEST(units, rounding_keeps_multiples_and_moves_the_rest) {
  EXPECT_EQ(round_up(0, 2_MiB), 0u);
  EXPECT_EQ(round_up(1, 2_MiB), 2_MiB);
  EXPECT_EQ(round_up(2_MiB, 2_MiB), 2_MiB);
  EXPECT_EQ(round_up(2_MiB + 1, 2_MiB), 4_MiB);
  EXPECT_EQ(round_down(4_MiB - 1, 2_MiB), 2_MiB);
  EXPECT_EQ(round_up(10, 3), 12u);
  EXPECT_EQ(divide_up(10, 3), 4u);
  EXPECT_EQ(divide_up(9, 3), 3u);
  EXPECT_EQ(divide_up(0, 3), 0u);
  EXPECT_EQ(divide_up(SIZE_MAX, 2), SIZE_MAX / 2 + 1);
}

TEST(units, rounding_up_saturates_instead_of_wrapping) {
  EXPECT_EQ(round_up(SIZE_MAX, 2_MiB), round_down(SIZE_MAX, 2_MiB));
  EXPECT_EQ(round_up(SIZE_MAX - 2_MiB + 2, 2_MiB), SIZE_MAX - 2_MiB + 1);
  EXPECT_EQ(round_up(SIZE_MAX - 2_MiB + 1, 2_MiB), SIZE_MAX - 2_MiB + 1);
}

TEST(units, physical_sizes_add_up) {
  physical_size s(3_GiB);
  s += physical_size(1_GiB);
  s -= physical_size(2_GiB);
  EXPECT_EQ(s, physical_size(2_GiB));
  EXPECT_EQ((s + s - physical_size(1)).bytes(), 4_GiB - 1);
  EXPECT_LT(physical_size(1_TiB), physical_size(1_TiB + 1_KiB));
}

}  // namespace
}  // namespace stillmap
