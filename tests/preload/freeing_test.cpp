// What a program relies on when it frees memory is so with the preload, too.
#include <set>

#include "tests/preload/preload_test.h"

namespace stillmap {
namespace {

using testing::client_result;
using testing::client_setting;

class freeing : public testing::preload_test {
 protected:
  // Runs a case of the client, with other variables where there are some.
  client_result expect_right(const std::string &name, const client_setting &setting = {}) const {
    client_result r = run("preload_freeing", {name}, setting);
    EXPECT_EQ(r.status, 0) << name << "\n" << r.err;
    EXPECT_EQ(r.err, "") << name;
    EXPECT_GT(r.total("allocations"), 0u) << r.statistics;
    EXPECT_EQ(r.passed_on("not_served"), 0u) << r.statistics;
    return r;
  }
  void expect_right_and_empty(const std::string &name, const client_setting &setting = {}) const {
    const client_result r = expect_right(name, setting);
    EXPECT_EQ(r.total("live_bytes"), 0u) << r.statistics;
  }
  static bool has_two_devices() { return profile().find("multi") != std::string::npos; }
};

TEST_F(freeing, waits_for_the_work_that_uses_the_block) {
  expect_right_and_empty("waits_for_work");
}

// Regression: the second thread took the first one's wait for done before it had ended.
TEST_F(freeing, waits_while_another_thread_waits) {
  expect_right_and_empty("waits_in_two_threads");
}

// Regression: it waited for the current context, of another device.
TEST_F(freeing, waits_for_the_device_that_the_block_is_on) {
  if (!has_two_devices()) GTEST_SKIP() << "needs two devices";
  expect_right_and_empty("waits_for_the_device_of_the_block");
}

TEST_F(freeing, waits_in_the_current_one_of_several_contexts) {
  expect_right_and_empty("waits_in_several_contexts");
}

TEST_F(freeing, leaves_a_capture_valid) {
  expect_right_and_empty("capture_goes_on");
}

TEST_F(freeing, during_a_capture_is_made_up_for_when_memory_is_short) {
  client_setting setting;
  setting.variables = {"STILLMAP_PRELOAD_LIMIT=" + std::to_string(64 << 20)};
  expect_right_and_empty("captured_frees_come_back", setting);
}

TEST_F(freeing, keeps_the_order_of_streams) {
  const client_result r = run("preload_freeing", {"async_order"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.err, "");
}

TEST_F(freeing, keeps_the_order_of_each_threads_stream) {
  const client_result r = run("preload_freeing", {"per_thread_streams"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.err, "");
}

TEST_F(freeing, is_right_in_many_threads) {
  expect_right_and_empty("many_threads");
}

TEST_F(freeing, and_allocating_fail_as_without_the_preload) {
  client_setting without;
  without.preloaded = false;
  const client_result plain = run("preload_freeing", {"codes"}, without);
  ASSERT_EQ(plain.status, 0) << plain.err;
  const client_result ours = run("preload_freeing", {"codes"});
  ASSERT_EQ(ours.status, 0) << ours.err;
  EXPECT_EQ(ours.out, plain.out);
  EXPECT_EQ(ours.err, "");
}

TEST_F(freeing, works_until_the_very_end) {
  for (int i = 0; i < 5; ++i) expect_right("exit_with_memory");
}

}  // namespace
}  // namespace stillmap
