// The door by itself: what it holds, what it waits for, and that it opens again.
#include "preload/door.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace stillmap::preload {
namespace {

using std::chrono::steady_clock;
using namespace std::chrono_literals;

bool close_door(steady_clock::time_point deadline) {
  static const std::atomic<bool> never{false};
  return door::close(deadline, never);
}

class door_test : public ::testing::TestWithParam<bool> {
 protected:
  // Without membarrier, each call has a fence; once prepared, the process has it for good. So the first cases are
  // those without.
  void SetUp() override {
    static std::once_flag once;
    if (GetParam()) std::call_once(once, [] { door::prepare(); });
  }
  void TearDown() override { door::open(); }
  static steady_clock::time_point long_enough() { return steady_clock::now() + 60s; }
};

// A thread in a call, until it is told to leave.
class caller {
 public:
  explicit caller(bool waits = true)
      : thread_([this, waits] {
          const door::passage inside(waits);
          inside_ = true;
          while (!leave_) std::this_thread::yield();
          left_ = true;
        }) {}
  ~caller() {
    leave_ = true;
    thread_.join();
  }
  void wait_inside() const {
    while (!inside_) std::this_thread::yield();
  }
  bool inside() const { return inside_; }
  bool left() const { return left_; }
  void leave() { leave_ = true; }

 private:
  std::atomic<bool> inside_{false}, leave_{false}, left_{false};
  std::thread thread_;
};

TEST_P(door_test, gives_up_when_it_is_cancelled) {
  caller inside;
  inside.wait_inside();
  const std::atomic<bool> cancelled{true};
  EXPECT_FALSE(door::close(long_enough(), cancelled));
  const caller another;
  another.wait_inside();
}

TEST_P(door_test, closes_when_nothing_is_under_way) {
  ASSERT_TRUE(close_door(long_enough()));
  door::open();
  const door::passage inside(true);
}

TEST_P(door_test, waits_for_calls_under_way) {
  caller one, two;
  one.wait_inside();
  two.wait_inside();
  std::atomic<bool> closed{false};
  std::thread closing([&] {
    EXPECT_TRUE(close_door(long_enough()));
    EXPECT_TRUE(one.left() && two.left());
    closed = true;
  });
  std::this_thread::sleep_for(5ms);
  EXPECT_FALSE(closed);
  one.leave();
  std::this_thread::sleep_for(5ms);
  EXPECT_FALSE(closed);
  two.leave();
  closing.join();
  EXPECT_TRUE(closed);
}

TEST_P(door_test, is_open_again_after_the_deadline) {
  caller one;
  one.wait_inside();
  EXPECT_FALSE(close_door(steady_clock::now() + 5ms));
  caller two;
  two.wait_inside();
  two.leave();
  one.leave();
  EXPECT_TRUE(close_door(long_enough()));
}

TEST_P(door_test, holds_new_calls_until_it_opens) {
  ASSERT_TRUE(close_door(long_enough()));
  std::vector<std::unique_ptr<caller>> held;
  for (int i = 0; i < 8; ++i) held.push_back(std::make_unique<caller>());
  caller goes_on(false);
  goes_on.wait_inside();
  std::this_thread::sleep_for(10ms);
  for (const auto &c : held) EXPECT_FALSE(c->inside());
  door::open();
  for (const auto &c : held) c->wait_inside();
}

// A call that waits is not under way: the door can be closed again while some still wait.
TEST_P(door_test, closes_again_while_calls_come_back) {
  std::atomic<bool> end{false};
  std::atomic<int> in_calls{0}, calls{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      while (!end) {
        const door::passage inside(true);
        ++in_calls;
        ++calls;
        --in_calls;
      }
    });
  }
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(close_door(long_enough()));
    ASSERT_EQ(in_calls, 0);
    const int before = calls;
    if (i % 20 == 0) std::this_thread::sleep_for(1ms);
    ASSERT_EQ(calls, before);
    door::open();
    while (calls == before) std::this_thread::yield();
  }
  end = true;
  for (std::thread &t : threads) t.join();
}

// A call that comes from within a call (a host function, another interposer) would wait for itself.
TEST_P(door_test, lets_calls_from_within_a_call_go_on) {
  std::atomic<bool> nest{false}, nested{false};
  std::atomic<bool> inside{false};
  std::thread thread([&] {
    const door::passage outer(true);
    inside = true;
    while (!nest) std::this_thread::yield();
    {
      const door::passage inner(true);
      const door::passage innermost(true);
    }
    nested = true;
  });
  while (!inside) std::this_thread::yield();
  std::thread closing([&] {
    EXPECT_TRUE(close_door(long_enough()));
    EXPECT_TRUE(nested);
  });
  std::this_thread::sleep_for(5ms);
  nest = true;
  closing.join();
  thread.join();
}

TEST_P(door_test, forgets_threads_that_have_ended) {
  for (int round = 0; round < 5; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 100; ++i) {
      threads.emplace_back([] { const door::passage inside(true); });
    }
    for (std::thread &t : threads) t.join();
    EXPECT_TRUE(close_door(long_enough()));
    door::open();
  }
}

// As one that pthread_cancel ends, whose frames have no destructors here.
TEST_P(door_test, forgets_calls_that_their_thread_never_left) {
  std::thread([] {
    alignas(door::passage) static unsigned char memory[sizeof(door::passage)];
    ::new (static_cast<void *>(memory)) door::passage(true);
  }).join();
  EXPECT_TRUE(close_door(long_enough()));
}

TEST_P(door_test, lets_threads_of_the_service_pass) {
  ASSERT_TRUE(close_door(long_enough()));
  std::thread([] {
    door::let_this_thread_pass();
    for (int i = 0; i < 3; ++i) const door::passage inside(true);
  }).join();
  door::open();
  std::atomic<bool> inside{false}, leave{false};
  std::thread passing([&] {
    door::let_this_thread_pass();
    const door::passage in_call(true);
    inside = true;
    while (!leave) std::this_thread::yield();
  });
  while (!inside) std::this_thread::yield();
  EXPECT_TRUE(close_door(long_enough())) << "it is not waited for";
  leave = true;
  passing.join();
}

TEST_P(door_test, counts_a_hundred_threads) {
  std::vector<std::unique_ptr<caller>> all;
  for (int i = 0; i < 100; ++i) all.push_back(std::make_unique<caller>());
  for (const auto &c : all) c->wait_inside();
  EXPECT_FALSE(close_door(steady_clock::now() + 1ms));
  for (std::size_t i = 1; i < all.size(); ++i) all[i]->leave();
  EXPECT_FALSE(close_door(steady_clock::now() + 1ms)) << "one is under way";
  all[0]->leave();
  EXPECT_TRUE(close_door(long_enough()));
}

// Calls that a thread makes while it ends come after its record was given away: destructors of thread_local objects.
struct calls_at_the_end {
  std::atomic<bool> *inside = nullptr, *leave = nullptr;
  ~calls_at_the_end() {
    if (inside == nullptr) return;
    const door::passage in_call(true);
    *inside = true;
    while (!*leave) std::this_thread::yield();
  }
};

TEST_P(door_test, counts_calls_of_a_thread_that_ends) {
  std::atomic<bool> inside{false}, leave{false};
  std::thread ending([&] {
    // Made first, destroyed last.
    thread_local calls_at_the_end last;
    last.inside = &inside;
    last.leave = &leave;
    const door::passage first(true);
  });
  while (!inside) std::this_thread::yield();
  // Others come and go meanwhile, and may take the record of the one that ends.
  for (int i = 0; i < 20; ++i) std::thread([] { const door::passage p(true); }).join();
  // Regression: a thread that had its record took the call of the one that ends for its own, and passed.
  std::thread closing([] { EXPECT_TRUE(close_door(long_enough())); });
  std::this_thread::sleep_for(20ms);
  std::vector<std::unique_ptr<caller>> held;
  for (int i = 0; i < 100; ++i) held.push_back(std::make_unique<caller>());
  std::this_thread::sleep_for(20ms);
  for (const auto &c : held) EXPECT_FALSE(c->inside());
  leave = true;
  ending.join();
  closing.join();
  door::open();
  held.clear();
  EXPECT_TRUE(close_door(long_enough()));
}

TEST_P(door_test, is_open_in_a_child) {
  ASSERT_TRUE(close_door(long_enough()));
  const pid_t child = ::fork();
  if (child == 0) {
    if (!GetParam()) ::_exit(0);
    ::alarm(30);
    const door::passage inside(true);
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

// In a child, no other thread will end its call.
TEST_P(door_test, closes_in_a_child_of_a_process_with_calls_under_way) {
  if (!GetParam()) return;
  caller other;
  other.wait_inside();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(close_door(steady_clock::now() + 20s) ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

INSTANTIATE_TEST_SUITE_P(a_unprepared, door_test, ::testing::Values(false));
INSTANTIATE_TEST_SUITE_P(b_prepared, door_test, ::testing::Values(true));

}  // namespace
}  // namespace stillmap::preload
