// Signals and the threads of the library.
#include "stillmap/vmm/base/start_thread.h"

#include <future>

#include "stillmap/vmm/page_pool.h"
#include "tests/support/no_threads.h"
#include "tests/support/pool_test.h"
#include "tests/support/thread_signals.h"

namespace stillmap {
namespace {

TEST(start_thread, blocks_signals_there_and_not_here) {
  const auto before = testing::threads_so_far();
  sigset_t mine, after;
  pthread_sigmask(SIG_BLOCK, nullptr, &mine);
  std::promise<void> end;
  auto waiting = end.get_future();
  const std::jthread thread =
      start_thread([](std::future<void> until) { until.wait(); }, std::move(waiting));
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  const auto found = testing::signals_of_new_threads(before);
  end.set_value();
  EXPECT_EQ(found.seen, 1);
  EXPECT_EQ(found.wrong, "");
  EXPECT_EQ(sigismember(&mine, SIGINT), sigismember(&after, SIGINT));
  EXPECT_EQ(sigismember(&after, SIGINT), 0);
}

using pool_threads = testing::pool_test;

TEST_F(pool_threads, run_no_handler_of_the_program) {
  const auto pool = make_pool();
  const auto before = testing::threads_so_far();
  std::promise<void> ran;
  ASSERT_TRUE(pool->in_background(this, [&] { ran.set_value(); }));
  ran.get_future().wait();
  const auto found = testing::signals_of_new_threads(before);
  EXPECT_EQ(found.seen, 1);
  EXPECT_EQ(found.wrong, "");
}

TEST_F(pool_threads, that_cannot_be_started_are_an_error) {
  const auto pool = make_pool();
  {
    const testing::no_threads none;
    const status s = pool->in_background(this, [] {});
    ASSERT_FALSE(s);
    EXPECT_EQ(s.error().code, std::errc::resource_unavailable_try_again) << s.error().message();
    pool->keep_ready(page());
    EXPECT_EQ(pool->stats().background_failures, 1u);
    pool->keep_ready(0);
  }
  EXPECT_TRUE(pool->in_background(this, [] {}));
}

}  // namespace
}  // namespace stillmap
