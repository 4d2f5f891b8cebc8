// The threads of a migration's destination: their signals, and what happens where one cannot be
// started.
#include <gtest/gtest.h>

#include <thread>

#include "tests/checkpoint/migration/endpoints.h"
#include "tests/support/buffer_test.h"
#include "tests/support/no_threads.h"
#include "tests/support/thread_signals.h"

namespace stillmap::migration::testing {
namespace {

using receiver_threads = stillmap::testing::buffer_test;

TEST_F(receiver_threads, run_no_handler_of_the_program) {
  using stillmap::testing::signals_of_new_threads;
  STILLMAP_NEEDS_VMM();
  const test_site site;
  const auto before = stillmap::testing::all_threads();
  const auto at = receiver::create(dev(), at_destination(site), destination_options(site));
  ASSERT_TRUE(at) << at.error().message();
  // The thread that accepts, and that of a connection, which waits for the handshake.
  const auto idle = to_destination(site)->connect(std::chrono::seconds(30));
  ASSERT_TRUE(idle) << idle.error().message();
  auto found = signals_of_new_threads(before);
  for (int i = 0; found.seen < 2 && i < 3000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    found = signals_of_new_threads(before);
  }
  EXPECT_EQ(found.seen, 2);
  EXPECT_EQ(found.wrong, "");
}

TEST_F(receiver_threads, that_cannot_be_started_are_an_error) {
  STILLMAP_NEEDS_VMM();
  const test_site site;
  const stillmap::testing::no_threads none;
  const auto at = receiver::create(dev(), at_destination(site), destination_options(site));
  ASSERT_FALSE(at);
  EXPECT_EQ(at.error().code, std::errc::resource_unavailable_try_again) << at.error().message();
}

}  // namespace
}  // namespace stillmap::migration::testing
