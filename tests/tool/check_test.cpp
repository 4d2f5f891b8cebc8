// The verdict of a demo: its conditions, and that each failure is named.
#include "tools/stillmap/demo/check.h"

#include <gtest/gtest.h>

#include <array>

namespace stillmap::tool {
namespace {

observed good() {
  observed o;
  o.bytes = o.bytes_checked = 12345;
  o.growths = 3;
  o.first_address = o.last_address = device_address(0x200000);
  o.copied_by_driver = 0;
  return o;
}

void expect_failure(const observed &o, const std::string &line) {
  const verdict v = judge(o);
  EXPECT_FALSE(v.ok);
  EXPECT_EQ(v.line, line);
}

TEST(Check, AllGoodIsTheExactLine) {
  const verdict v = judge(good());
  EXPECT_TRUE(v.ok);
  EXPECT_EQ(v.line, "stillmap: ok: 12345 bytes in 3 growths, 0 bytes copied, address unchanged");
}

TEST(Check, NothingAtAllIsGood) {
  const verdict v = judge(observed{});
  EXPECT_TRUE(v.ok);
  EXPECT_EQ(v.line, "stillmap: ok: 0 bytes in 0 growths, 0 bytes copied, address unchanged");
}

TEST(Check, AWrongByteIsNamed) {
  observed o = good();
  o.differs = byte_difference{77, 0x41, 0x00};
  expect_failure(o, "stillmap: FAILED: byte 77 is wrong: the source has 0x41, the device 0x00");
}

TEST(Check, AWrongDigestIsNamed) {
  observed o = good();
  o.digests_differ = true;
  expect_failure(
      o,
      "stillmap: FAILED: the content is wrong: the digest of the 12345 bytes read back is "
      "not that of the source");
}

TEST(Check, ASourceThatChangedIsNamed) {
  observed o = good();
  o.source_trouble = "file changed";
  expect_failure(o, "stillmap: FAILED: file changed");
}

TEST(Check, BytesLeftUncheckedFail) {
  observed o = good();
  o.bytes_checked = 12344;
  expect_failure(o, "stillmap: FAILED: only 12344 of 12345 bytes could be checked");
}

TEST(Check, AMovedAddressIsNamed) {
  observed o = good();
  o.last_address = device_address(0x400000);
  expect_failure(o, "stillmap: FAILED: the address moved from 0x200000 to 0x400000 (1 time)");
}

TEST(Check, AnAddressThatMovedAndCameBackStillMoved) {
  observed o = good();
  o.moves_seen = 2;
  expect_failure(o, "stillmap: FAILED: the address moved from 0x200000 to 0x200000 (2 times)");
  o.moves_seen = 0;
  o.relocations = 1;  // the buffer says so, though nobody saw it
  expect_failure(o, "stillmap: FAILED: the address moved from 0x200000 to 0x200000 (1 time)");
}

TEST(Check, EachCounterOfCopiedBytesCounts) {
  for (auto set :
       {+[](observed &o) { o.copied_by_calls = 5; }, +[](observed &o) { o.copied_by_buffer = 5; },
        +[](observed &o) { o.copied_by_driver = 5; }}) {
    observed o = good();
    set(o);
    expect_failure(o, "stillmap: FAILED: 5 bytes copied to grow");
  }
}

TEST(Check, ADriverWithoutCountersIsNotHeldAgainstIt) {
  observed o = good();
  o.copied_by_driver.reset();
  EXPECT_TRUE(judge(o).ok);
}

TEST(Check, EverythingWrongIsSaid) {
  observed o = good();
  o.differs = byte_difference{0, 1, 2};
  o.last_address = device_address(0x400000);
  o.copied_by_calls = 9;
  expect_failure(
      o,
      "stillmap: FAILED: byte 0 is wrong: the source has 0x01, the device 0x02; the address "
      "moved from 0x200000 to 0x400000 (1 time); 9 bytes copied to grow");
}

TEST(Check, FirstDifference) {
  std::array<std::byte, 100> a{}, b{};
  EXPECT_FALSE(first_difference(a, b, 0));
  EXPECT_FALSE(first_difference({}, {}, 0));
  for (const std::size_t at : {std::size_t{0}, std::size_t{63}, std::size_t{99}}) {
    b = a;
    b[at] = std::byte{7};
    const auto found = first_difference(a, b, 1000);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->offset, 1000 + at);
    EXPECT_EQ(found->source, 0u);
    EXPECT_EQ(found->device, 7u);
  }
}

}  // namespace
}  // namespace stillmap::tool
