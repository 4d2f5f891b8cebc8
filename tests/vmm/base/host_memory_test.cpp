// Host memory that runs out: the error it becomes, and the failures that tests make.
#include "stillmap/vmm/base/host_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <system_error>
#include <vector>

#include "stillmap/vmm/base/cuda_errors.h"
#include "tests/support/host_memory.h"

namespace stillmap {
namespace {

using testing::fail_host_allocation;

TEST(host_memory, exhaustion_is_an_error_that_tells_it_from_a_device) {
  const auto filled = [](std::size_t n) -> result<std::size_t> {
    return with_host_memory(
        "test::fill", [&]() -> result<std::size_t> { return std::vector<char>(n, 'x').size(); });
  };
  EXPECT_EQ(filled(100).value(), 100u);
  {
    const fail_host_allocation failing(0);
    const auto made = filled(100);
    ASSERT_FALSE(made);
    EXPECT_TRUE(failing.happened());
    EXPECT_TRUE(made.error().is(errc::out_of_memory));
    EXPECT_EQ(made.error().code, std::errc::not_enough_memory);
    EXPECT_FALSE(made.error().is(errc::busy));
    EXPECT_STREQ(made.error().operation, "test::fill");
  }
  EXPECT_NE(make_error_code(errc::out_of_memory), std::errc::not_enough_memory);
  EXPECT_TRUE(filled(SIZE_MAX).error().is(errc::out_of_memory));
}

TEST(host_memory, the_nth_allocation_fails_and_perhaps_those_after_it) {
  const auto fails = [] {
    try {
      delete new int;
      return false;
    } catch (const std::bad_alloc &) {
      return true;
    }
  };
  {
    const fail_host_allocation second(1);
    EXPECT_FALSE(fails());
    EXPECT_FALSE(second.happened());
    EXPECT_TRUE(fails());
    EXPECT_TRUE(second.happened());
    EXPECT_FALSE(fails());
  }
  {
    const fail_host_allocation from_second(1, true);
    EXPECT_FALSE(fails());
    EXPECT_TRUE(fails());
    EXPECT_TRUE(fails());
  }
  EXPECT_FALSE(fails());
}

// Regression: what makes the first error of a process was allocated then, in functions that cannot fail:
// a program whose first error came when its memory was out ended.
TEST(host_memory, the_first_error_of_a_process_needs_none) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fresh process
  const auto fails = [] {
    fail_host_allocation all(0, true);
    const error first{std::make_error_code(std::errc::not_enough_memory), "test", "none"};
    const bool known = first.is(errc::out_of_memory) && !driver_is_gone(first.code);
    report_background_error(first);
    all.stop();
    std::exit(known && !all.happened() ? 0 : 1);
  };
  EXPECT_EXIT(fails(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace stillmap
