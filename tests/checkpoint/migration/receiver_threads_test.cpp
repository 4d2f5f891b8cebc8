// The threads of a migration's destination: their signals, and what happens where one cannot be
// started.
#include <gtest/gtest.h>

#include <atomic>
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
  const auto before = stillmap::testing::threads_so_far();
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

// Regression: a stop that came between the check for one and the wait was noticed after the timeout.
TEST_F(receiver_threads, that_wait_for_a_task_notice_a_stop_at_any_moment) {
  STILLMAP_NEEDS_VMM();
  const test_site site;
  auto at = receiver::create(dev(), at_destination(site), destination_options(site));
  ASSERT_TRUE(at) << at.error().message();
  constexpr std::chrono::seconds timeout(5);
  std::atomic<std::stop_source *> next{nullptr};
  std::atomic<unsigned> delay{0};
  // One thread for all: one of its own would take too long to start.
  const std::jthread stops([&](const std::stop_token &over) {
    while (!over.stop_requested()) {
      std::stop_source *const stop = next;
      if (stop == nullptr) continue;
      for (unsigned n = delay; n > 0; --n) (void)next.load();
      stop->request_stop();
      next = nullptr;
    }
  });
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (unsigned i = 0; i < 40000 && std::chrono::steady_clock::now() < end; ++i) {
    std::stop_source stop;
    delay = i % 256;
    const auto before = std::chrono::steady_clock::now();
    next = &stop;
    const auto none = at->receive(timeout, stop.get_token());
    const auto took = std::chrono::steady_clock::now() - before;
    while (next != nullptr) std::this_thread::yield();
    ASSERT_FALSE(none);
    ASSERT_TRUE(none.error().is(errc::operation_canceled)) << none.error().message();
    ASSERT_LT(took, timeout) << i;
  }
}

}  // namespace
}  // namespace stillmap::migration::testing
