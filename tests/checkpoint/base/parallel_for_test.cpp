// Work on several threads.
#include "stillmap/checkpoint/base/parallel_for.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <string_view>
#include <thread>

#include "stillmap/vmm/base/operation.h"
#include "tests/support/no_threads.h"
#include "tests/support/thread_signals.h"

namespace stillmap::checkpoint {
namespace {

TEST(parallel_for, its_threads_run_no_handler_of_the_program) {
  const auto before = testing::threads_so_far();
  std::barrier all_here(4);
  testing::new_threads found;
  const std::thread::id caller = std::this_thread::get_id();
  parallel_for(4, [&]() noexcept {
    all_here.arrive_and_wait();
    if (std::this_thread::get_id() == caller) found = testing::signals_of_new_threads(before);
    all_here.arrive_and_wait();
  });
  EXPECT_EQ(found.seen, 3);
  EXPECT_EQ(found.wrong, "");
}

TEST(parallel_for, its_threads_work_for_the_operation_of_the_caller) {
  const operation_scope scope("test::work");
  std::barrier all_here(4);
  std::atomic<int> named{0};
  parallel_for(4, [&]() noexcept {
    all_here.arrive_and_wait();
    if (operation_scope::current() == std::string_view("test::work")) ++named;
  });
  EXPECT_EQ(named, 4);
}

TEST(parallel_for, one_thread_works_where_no_other_can_be_started) {
  const testing::no_threads none;
  int runs = 0;
  parallel_for(4, [&]() noexcept { ++runs; });
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace stillmap::checkpoint
