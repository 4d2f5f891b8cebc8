// The checker of block contents: it sees a wrong byte, and says where.
#include <gtest/gtest.h>

#include "bench/replay/block_checker.h"
#include "tests/support/buffer_test.h"

namespace stillmap::testing {
namespace {

using namespace stillmap::literals;
using namespace stillmap::replay;

class CheckerTest : public buffer_test {};

TEST_F(CheckerTest, AWrongByteIsSeen) {
  const context_guard guard(driver(), dev().context());
  const stream s = make_stream();
  const stream_ref refs[] = {s};
  for (const check_depth depth : {check_depth::pages, check_depth::bytes}) {
    const auto at = driver().allocate(3_MiB);
    ASSERT_TRUE(at);
    {
      const auto made = block_checker::create(dev(), refs, 1, depth);
      ASSERT_TRUE(made);
      block_checker *const checker = made->get();
      ASSERT_TRUE(checker->allocated(0, at->pointer(), 3_MiB, 0));
      // The last byte before the page boundary inside.
      const std::size_t edge = page() - at->value() % page();
      ASSERT_TRUE(driver().set_bytes_async(*at + (edge - 1), 0xee, 1, s.get()));
      ASSERT_TRUE(checker->before_free(0));
      const auto seen = checker->finish();
      ASSERT_FALSE(seen);
      EXPECT_NE(seen.error().message().find("a wrong byte: allocation 1"), std::string::npos);
      EXPECT_NE(seen.error().message().find("offset " + std::to_string(edge - 1)),
                std::string::npos)
          << seen.error().message();
    }
    ASSERT_TRUE(driver().free(*at));
  }
}

TEST_F(CheckerTest, TheReportNamesBlockByteAndStream) {
  const context_guard guard(driver(), dev().context());
  const stream first = make_stream(), second = make_stream();
  const stream_ref refs[] = {first, second};
  const auto at = driver().allocate(1_MiB);
  ASSERT_TRUE(at);
  for (const bool shared : {false, true}) {
    const auto made = block_checker::create(dev(), refs, 2, check_depth::bytes);
    ASSERT_TRUE(made);
    block_checker &checker = **made;
    ASSERT_TRUE(checker.allocated(0, at->pointer(), 512, 0));
    ASSERT_TRUE(checker.allocated(1, (*at + 512).pointer(), 700, 0));
    ASSERT_TRUE(checker.used(1, 0));  // its own stream: nothing new
    if (shared) {
      ASSERT_TRUE(checker.used(1, 1));
    }
    ASSERT_TRUE(driver().synchronize_context());
    ASSERT_TRUE(driver().set_bytes_async(*at + (512 + 699), 0xee, 1, first.get()));
    ASSERT_TRUE(driver().synchronize_context());
    ASSERT_TRUE(checker.before_free(0));
    ASSERT_TRUE(checker.before_free(1));
    const auto seen = checker.finish();
    ASSERT_FALSE(seen);
    EXPECT_EQ(checker.bytes_checked(), 512u) << "the block that was right";
    const std::string said = seen.error().detail().cause;
    EXPECT_NE(said.find("allocation 2 (700 bytes) holds 0xee instead of 0x"), std::string::npos)
        << said;
    EXPECT_NE(said.find(shared ? "at offset 699, as stream 1 read it before the free"
                               : "at offset 699, as stream 0 read it before the free"),
              std::string::npos)
        << said;
  }
  ASSERT_TRUE(driver().free(*at));
}

TEST_F(CheckerTest, ends_and_page_boundaries_are_always_checked) {
  const context_guard guard(driver(), dev().context());
  const stream s = make_stream();
  const stream_ref refs[] = {s};
  const auto at = driver().allocate(8_MiB);
  ASSERT_TRUE(at);
  const std::size_t edge = page() - at->value() % page(), bytes = edge + page() + 1000;
  {
    std::uint64_t checked = 0;
    const auto check = [&](std::size_t length, std::optional<std::size_t> wrong) {
      const auto made = block_checker::create(dev(), refs, 1, check_depth::pages);
      ASSERT_TRUE(made);
      block_checker &checker = **made;
      ASSERT_TRUE(checker.allocated(0, at->pointer(), length, 0));
      if (wrong) {
        ASSERT_TRUE(driver().set_bytes_async(*at + *wrong, 0xee, 1, s.get()));
      }
      ASSERT_TRUE(checker.before_free(0));
      EXPECT_EQ(checker.finish().has_value(), !wrong) << length << " bytes, " << wrong.value_or(0);
      checked = checker.bytes_checked();
    };
    for (const std::size_t length : {std::size_t{1}, std::size_t{128}, std::size_t{129}}) {
      check(length, std::nullopt);
      check(length, 0);
      check(length, length - 1);
    }
    for (const std::size_t wrong :
         {std::size_t{0}, std::size_t{63}, edge - 32, edge - 1, edge, edge + 31, edge + page() - 1,
          edge + page(), bytes - 64, bytes - 1}) {
      check(bytes, wrong);
    }
    check(bytes, std::nullopt);
    EXPECT_EQ(checked, 4 * 64u) << "both ends and two boundaries";
  }
  ASSERT_TRUE(driver().free(*at));
}

}  // namespace
}  // namespace stillmap::testing
