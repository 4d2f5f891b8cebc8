// Numbers as text.
#include "stillmap/vmm/base/format.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "stillmap/vmm/base/units.h"

namespace stillmap {
namespace {

using namespace literals;

TEST(Format, BytesAreShort) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1_KiB), "1 KiB");
  EXPECT_EQ(format_bytes(1_MiB + 256_KiB), "1.25 MiB");
  EXPECT_EQ(format_bytes(std::uint64_t{150754820096}), "140.4 GiB");
  EXPECT_EQ(format_bytes(1_MiB - 1), "1 MiB");  // not "1024 KiB"
  EXPECT_EQ(format_bytes(1_GiB - 1), "1 GiB");
  EXPECT_EQ(format_bytes(UINT64_MAX), "16 EiB");
}

TEST(Format, CountsHaveSeparators) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(1234567), "1,234,567");
}

TEST(Format, FixedNumbersKeepTheirDecimals) {
  EXPECT_EQ(format_fixed(0.5, 2), "0.50");
  EXPECT_EQ(format_fixed(-2.25, 1), "-2.2");
  EXPECT_EQ(format_fixed(99.6, 0), "100");
  EXPECT_EQ(format_fixed(std::numeric_limits<double>::max(), 9).size(), 309u + 1 + 9);
}

}  // namespace
}  // namespace stillmap
