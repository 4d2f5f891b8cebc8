// Processes that a program with the preload starts, and programs that never use CUDA.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/preload/preload_test.h"

namespace stillmap {
namespace {

using testing::client_result;
using testing::client_setting;

class children : public testing::preload_test {};

TEST_F(children, and_programs_without_cuda_see_nothing) {
  for (const char *const way : {"no_cuda", "local_driver"}) {
    client_setting without;
    without.preloaded = false;
    const client_result plain = run("preload_children", {way}, without);
    EXPECT_EQ(plain.status, 0) << way << plain.err;
    const client_result r = run("preload_children", {way});
    EXPECT_EQ(r.status, 0) << way << r.err;
    EXPECT_EQ(r.err, "");
    EXPECT_EQ(r.out, plain.out);
    EXPECT_EQ(r.statistics, "") << "no file";
  }
}

TEST_F(children, that_are_forked_get_what_they_get_without_the_preload) {
  client_setting without;
  without.preloaded = false;
  const client_result plain = run("preload_children", {"forked"}, without);
  const client_result r = run("preload_children", {"forked"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.err, "");
  EXPECT_EQ(r.out, plain.out);
  EXPECT_EQ(r.total("allocations"), 5u) << r.statistics;
}

// Regression: a child wrote its own, empty statistics in the place of its parent's.
TEST_F(children, that_outlive_the_program_leave_its_statistics) {
  const client_result r = run("preload_children", {"outlives"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.total("allocations"), 5u) << r.statistics;
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(content(file("statistics")), r.statistics);
}

TEST_F(children, that_execute_another_program_are_served) {
  for (const char *const way : {"executed", "spawned"}) {
    const client_result r = run("preload_children", {way, built("preload_linked")});
    expect_served(r);
  }
}

}  // namespace
}  // namespace stillmap
