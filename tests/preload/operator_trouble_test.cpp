// What a program does while an operator asks for its memory, and neither may suffer from.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/preload/operated_program.h"

namespace stillmap {
namespace {

using namespace std::chrono_literals;
using testing::expect_refused;
using testing::expect_suspended;
using testing::operated_program;
using testing::whole_program;

class operated_trouble : public testing::operated_test {
 protected:
  void SetUp() override {
    operated_test::SetUp();
    if (has_several_devices()) GTEST_SKIP() << "as with one";
  }
};

// Fails each allocation of host memory that Stillmap's threads make for a request, once. The request may have been
// carried out where its answer was lost; `repair` sees to it that the program goes on.
template <class Request, class Repair>
void fail_each_allocation(const operated_program &p, Request request, Repair repair) {
  std::uint64_t failed = 0;
  for (std::uint64_t n = 1;; ++n) {
    SCOPED_TRACE("allocation " + std::to_string(n));
    ASSERT_LT(n, 10'000u);
    ASSERT_EQ(p.ask("fail_new " + std::to_string(n)), "ok");
    request();
    const bool fired = p.number("new_failed") != 0;
    repair();
    ASSERT_TRUE(p.works());
    ASSERT_EQ(p.ask("constant"), "right");
    if (!fired) break;
    ++failed;
  }
  EXPECT_GT(failed, 10u);
}

TEST_F(operated_trouble, has_no_host_memory_to_be_suspended) {
  const auto p = start();
  ASSERT_EQ(p->ask("work"), "ok");
  const auto resume = [&] { (void)p->as_operator().resume("program"); };
  fail_each_allocation(
      *p, [&] { (void)p->as_operator().suspend(whole_program); }, resume);
  EXPECT_EQ(p->end(), 0);
}

TEST_F(operated_trouble, has_no_host_memory_to_be_saved) {
  const auto p = start();
  ASSERT_EQ(p->ask("work"), "ok");
  fail_each_allocation(
      *p,
      [&] { (void)p->as_operator().snapshot({.tags = {"program"}, .path = file("program.smi")}); },
      [] {});
  EXPECT_EQ(p->end(), 0);
}

TEST_F(operated_trouble, has_an_operator_new_that_calls_the_driver) {
  const auto p = start();
  ASSERT_EQ(p->ask("work"), "ok");
  ASSERT_EQ(p->ask("new_calls_driver"), "ok");
  expect_suspended(*p);
  const auto saved = p->as_operator().snapshot({.tags = {"program"}, .path = file("program.smi")});
  EXPECT_TRUE(saved) << saved.error().message();
  EXPECT_EQ(p->end(), 0);
}

// The loader's lock is held by a thread that waits for the request to end.
TEST_F(operated_trouble, loads_libraries_that_call_the_driver) {
  const auto p = start();
  ASSERT_EQ(p->ask("work"), "ok");
  ASSERT_EQ(p->ask("load " + built("libpreload_calling.so")), "ok");
  for (int i = 0; i < 5; ++i) {
    ASSERT_NO_FATAL_FAILURE(expect_suspended(*p));
    const auto saved =
        p->as_operator().snapshot({.tags = {"program"}, .path = file(std::to_string(i) + ".smi")});
    ASSERT_TRUE(saved) << saved.error().message();
  }
  EXPECT_GT(p->number("end_load"), 0u);
  EXPECT_EQ(p->end(), 0);
}

TEST_F(operated_trouble, asks_what_memory_is_and_waits_for_it) {
  const auto p = start();
  ASSERT_TRUE(p->as_operator().suspend(whole_program));
  ASSERT_EQ(p->ask("ask"), "ok");
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(p->ask("asked"), "waits");
  ASSERT_TRUE(p->as_operator().resume("program"));
  EXPECT_EQ(p->ask("end_ask"), "right");
}

TEST_F(operated_trouble, captures_behind_a_request_that_was_late) {
  const auto p = start_impatient();
  ASSERT_EQ(p->ask("context"), "ok");
  ASSERT_EQ(p->ask("work"), "ok");
  ASSERT_EQ(p->ask("queue"), "ok");
  expect_refused(*p);
  ASSERT_EQ(p->ask("capture_there"), "ok");
  ASSERT_EQ(p->ask("end_queue"), "ok");
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(p->ask("end_capture_there"), "ok");
  // Once the late thread has ended, and within 100 ms on a machine with other work.
  bool suspended = false;
  for (int i = 0; i < 100 && !suspended; ++i)
    suspended = p->as_operator().suspend(whole_program).has_value();
  EXPECT_TRUE(suspended);
}

TEST_F(operated_trouble, ends_captures_by_their_context_or_stream) {
  const auto p = start();
  ASSERT_EQ(p->ask("work"), "ok");
  for (const char *const what : {"stream", "context", "detach", "thread"}) {
    SCOPED_TRACE(what);
    // Copies of the legacy stream would invalidate a capture of a thread's own.
    ASSERT_EQ(p->ask("rest"), "ok");
    ASSERT_EQ(p->ask(std::string("capture_and_end ") + what), "ok");
    ASSERT_EQ(p->ask("work"), "ok");
    ASSERT_NO_FATAL_FAILURE(expect_suspended(*p));
  }
}

TEST_F(operated_trouble, has_many_contexts_and_some_that_are_none) {
  const auto p = start();
  ASSERT_EQ(p->ask("work"), "ok");
  ASSERT_EQ(p->ask("contexts 200"), "ok");
  ASSERT_NO_FATAL_FAILURE(expect_suspended(*p));
  ASSERT_EQ(p->ask("refused_contexts 200"), "ok");
  ASSERT_NO_FATAL_FAILURE(expect_suspended(*p));
}

// The streams that Stillmap copies with ended with the device's context.
TEST_F(operated_trouble, goes_on_without_an_operator_when_it_has_reset_its_device) {
  const auto p = start();
  ASSERT_EQ(p->ask("reset"), "ok");
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(p->as_operator().suspend(whole_program));
    ASSERT_EQ(p->ask("constant"), "right");
  }
}

}  // namespace
}  // namespace stillmap
