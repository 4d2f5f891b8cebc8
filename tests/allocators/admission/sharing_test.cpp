// Participants of one quota that ask each other for memory. Each is one handle; most are in this process.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "stillmap/allocators/admission/quota_table.h"
#include "stillmap/allocators/shared_quota.h"

namespace stillmap {
namespace {

using std::chrono::milliseconds;
using sharer = std::shared_ptr<shared_quota>;

class sharing_test : public ::testing::Test {
 protected:
  void TearDown() override { (void)shared_quota::remove(path_); }
  sharer join(const quota_terms &terms = {}, milliseconds timeout = milliseconds(20'000)) const {
    auto q = shared_quota::open(path_, {.limit = 100, .terms = terms, .timeout = timeout});
    if (!q) throw std::runtime_error(q.error().message());
    return *q;
  }
  // Gives back what it holds, `each` bytes for every question at most.
  static std::unique_ptr<reclaimer_registration> gives(const sharer &q, reclaim_kind kind,
                                                       std::uint64_t each = UINT64_MAX) {
    return q->add_reclaimer(kind, [q = q.get(), each](std::uint64_t bytes) -> std::uint64_t {
      const std::uint64_t given = std::min({bytes, each, q->stats()->own});
      EXPECT_TRUE(q->release(given));
      return given;
    });
  }
  std::vector<quota_event> events(quota_action a) const {
    const auto all = shared_quota::events_of(path_);
    std::vector<quota_event> out;
    std::copy_if(all->begin(), all->end(), std::back_inserter(out),
                 [&](const quota_event &e) { return e.action == a; });
    return out;
  }
  std::uint64_t waiting() const {
    std::uint64_t n = 0;
    const auto now = shared_quota::stats_of(path_);
    for (const auto &p : now->participants) n += p.waiting != 0 ? 1 : 0;
    return n;
  }
  void wait_until_waiting(std::uint64_t n) const {
    while (waiting() < n) std::this_thread::sleep_for(milliseconds(1));
  }
  // Bytes may be granted before whoever released them has written that it did.
  void wait_until_answered() const {
    while (events(quota_action::answered).empty()) std::this_thread::sleep_for(milliseconds(1));
  }
  std::uint64_t waits_until() const {
    quota_header h;
    std::ifstream file(path_, std::ios::binary);
    EXPECT_TRUE(file.read(reinterpret_cast<char *>(&h), sizeof h));
    return h.waits_until;
  }
  std::size_t bells() const {
    std::size_t n = 0;
    for (const auto &e : std::filesystem::directory_iterator(::testing::TempDir())) {
      n += e.path().string().starts_with(path_ + ".bell.") ? 1 : 0;
    }
    return n;
  }
  const std::string path_ = ::testing::TempDir() + "stillmap-sharing-" + std::to_string(getpid());
};

TEST_F(sharing_test, cached_memory_of_another_is_given_back) {
  const sharer a = join(), b = join();
  ASSERT_TRUE(a->reserve(90));
  const auto cached = gives(a, reclaim_kind::cached);
  ASSERT_TRUE(a->start_thread());
  EXPECT_EQ(bells(), 1u);
  ASSERT_TRUE(b->make_room(50));
  EXPECT_EQ(a->stats()->own, 50u) << "no more than was missing";
  EXPECT_EQ(b->stats()->own, 50u);
  ASSERT_TRUE(b->reserve(30)) << "out of the room";
  EXPECT_EQ(b->stats()->own, 50u);
  b->end_room();
  EXPECT_EQ(b->stats()->own, 30u) << "what was not used goes back";
  wait_until_answered();
  const quota_wait_stats of_b = b->stats()->waits, of_a = a->stats()->waits;
  EXPECT_EQ(of_b.waits, 1u);
  EXPECT_EQ(of_b.granted, 1u);
  EXPECT_EQ(of_b.recent.size(), 1u);
  EXPECT_EQ(of_a.asked_for[0], 1u);
  EXPECT_EQ(of_a.given[0], 40u);
  const auto asked = events(quota_action::asked), answered = events(quota_action::answered);
  ASSERT_EQ(asked.size(), 1u);
  ASSERT_EQ(answered.size(), 1u);
  EXPECT_EQ(asked[0].bytes, 40u);
  EXPECT_EQ(answered[0].bytes, 40u);
  EXPECT_EQ(answered[0].kind, reclaim_kind::cached);
  EXPECT_EQ(events(quota_action::granted).size(), 1u);
}

TEST_F(sharing_test, a_room_takes_back_what_its_thread_releases) {
  const sharer a = join();
  ASSERT_TRUE(a->make_room(60));
  ASSERT_TRUE(a->reserve(40));
  std::thread([&] {
    EXPECT_FALSE(a->reserve(50)) << "40 are free beside the room, which is another thread's";
    EXPECT_TRUE(a->reserve(40));
    EXPECT_TRUE(a->release(40));
  }).join();
  ASSERT_TRUE(a->release(40));
  EXPECT_EQ(a->stats()->own, 60u);
  ASSERT_TRUE(a->reserve(60));
  a->end_room();
  EXPECT_EQ(a->stats()->own, 60u);
  ASSERT_TRUE(a->release(60));
  EXPECT_EQ(a->stats()->own, 0u);
  EXPECT_FALSE(a->release(1));
}

TEST_F(sharing_test, rooms_of_a_thread_nest) {
  const sharer a = join();
  ASSERT_TRUE(a->make_room(30));
  ASSERT_TRUE(a->make_room(20));
  ASSERT_TRUE(a->reserve(40));
  EXPECT_EQ(a->stats()->own, 50u);
  a->end_room();
  EXPECT_EQ(a->stats()->own, 50u) << "the inner one was used up";
  ASSERT_TRUE(a->release(40));
  EXPECT_EQ(a->stats()->own, 30u) << "20 of the outer one were used";
  a->end_room();
  EXPECT_EQ(a->stats()->own, 0u);
}

// Regression: who reads the events could not tell who had left.
TEST_F(sharing_test, a_participant_that_ends_is_said_to_have_left) {
  const sharer a = join();
  {
    const sharer b = join();
    ASSERT_TRUE(b->reserve(30));
  }
  const auto left = events(quota_action::left);
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].process, static_cast<std::uint32_t>(getpid()));
  EXPECT_EQ(left[0].bytes, 30u);
  EXPECT_EQ(a->stats()->participants.size(), 1u);
  EXPECT_EQ(events(quota_action::left).size(), 1u) << "nobody finds it dead besides";
}

// A reservation reads what others wait for only where the header says that somebody may.
TEST_F(sharing_test, the_header_says_until_when_somebody_may_wait) {
  const sharer holder = join(), first = join(), second = join(), small = join({}, milliseconds(0));
  ASSERT_TRUE(holder->reserve(95));
  EXPECT_EQ(waits_until(), 0u);
  auto one = std::async(std::launch::async, [&] { return first->make_room(30).has_value(); });
  wait_until_waiting(1);
  auto two = std::async(std::launch::async, [&] { return second->make_room(60).has_value(); });
  wait_until_waiting(2);
  EXPECT_GT(waits_until(), 0u);
  ASSERT_TRUE(holder->release(25));
  EXPECT_TRUE(one.get());
  EXPECT_EQ(waiting(), 1u);
  EXPECT_GT(waits_until(), 0u) << "the other waits still";
  EXPECT_FALSE(small->reserve(1));
  ASSERT_TRUE(holder->release(70));
  EXPECT_TRUE(two.get());
  EXPECT_EQ(waits_until(), 0u);
  EXPECT_TRUE(small->reserve(1));
}

// The end of a participant whose thread is answering.
TEST_F(sharing_test, a_participant_may_end_while_it_is_asked) {
  const sharer b = join({}, milliseconds(20'000));
  for (int i = 0; i < 20; ++i) {
    sharer a = join();
    ASSERT_TRUE(a->reserve(100));
    std::atomic<bool> asked = false;
    auto slow = a->add_reclaimer(reclaim_kind::cached, [&](std::uint64_t) -> std::uint64_t {
      asked = true;
      std::this_thread::sleep_for(milliseconds(2));
      return 0;
    });
    ASSERT_TRUE(a->start_thread());
    auto room = std::async(std::launch::async, [&] {
      const bool got = b->make_room(70).has_value();
      b->end_room();
      return got;
    });
    while (!asked) std::this_thread::yield();
    a.reset();
    EXPECT_TRUE(room.get());
    EXPECT_EQ(b->stats()->own, 0u);
  }
}

// Kinds in order, and of one kind the lowest priority first.
TEST_F(sharing_test, the_cheapest_is_asked_for_first) {
  const sharer low = join({.priority = -1}), other = join(), me = join();
  ASSERT_TRUE(low->reserve(50) && other->reserve(50));
  std::vector<std::string> order;
  std::mutex mutex;
  const auto giver = [&](const sharer &q, reclaim_kind kind, std::string name,
                         std::uint64_t bytes) {
    return q->add_reclaimer(kind, [&, q = q.get(), name, bytes](std::uint64_t) -> std::uint64_t {
      const std::lock_guard lock(mutex);
      order.push_back(name);
      EXPECT_TRUE(q->release(bytes));
      return bytes;
    });
  };
  const auto r1 = giver(low, reclaim_kind::evictable, "low evictable", 20);
  const auto r2 = giver(other, reclaim_kind::cached, "other cached", 10);
  const auto r3 = giver(other, reclaim_kind::evictable, "other evictable", 5);
  const auto r4 = giver(low, reclaim_kind::cached, "low cached", 10);
  ASSERT_TRUE(low->start_thread() && other->start_thread());
  ASSERT_TRUE(me->make_room(40));
  me->end_room();
  EXPECT_EQ(order,
            (std::vector<std::string>{"low cached", "other cached", "low cached", "low evictable"}))
      << "each gives the cheapest that it has first";
}

TEST_F(sharing_test, a_minimum_is_never_asked_for) {
  const sharer a = join({.minimum = 60}), b = join({}, milliseconds(150));
  ASSERT_TRUE(a->reserve(100));
  const auto cached = gives(a, reclaim_kind::cached), evicts = gives(a, reclaim_kind::evictable);
  ASSERT_TRUE(a->start_thread());
  ASSERT_TRUE(b->make_room(40));
  b->end_room();
  ASSERT_TRUE(b->reserve(40));
  const status never = b->make_room(1);
  ASSERT_FALSE(never);
  EXPECT_TRUE(never.error().is(errc::out_of_memory)) << never.error().message();
  EXPECT_EQ(a->stats()->own, 60u);
}

TEST_F(sharing_test, who_holds_what_and_who_did_not_answer_is_said) {
  const sharer a = join(), b = join({}, milliseconds(300));
  ASSERT_TRUE(a->reserve(90));
  const auto never_called = gives(a, reclaim_kind::cached);  // nobody listens, and nobody polls
  const auto began = std::chrono::steady_clock::now();
  const status s = b->make_room(50);
  const auto took = std::chrono::steady_clock::now() - began;
  ASSERT_FALSE(s);
  EXPECT_TRUE(s.error().is(errc::busy));
  EXPECT_STREQ(s.error().operation, "shared_quota::make_room");
  EXPECT_EQ(s.error().value, 50u);
  EXPECT_EQ(s.error().limit, 10u);
  EXPECT_EQ(s.error().detail().subject, path_);
  EXPECT_EQ(s.error().detail().found,
            "process " + std::to_string(getpid()) + " holds 90 B and did not answer");
  EXPECT_GE(took, milliseconds(300));
  EXPECT_EQ(b->stats()->own, 0u);
  EXPECT_EQ(waiting(), 0u);
  EXPECT_EQ(b->stats()->waits.busy, 1u);
  EXPECT_TRUE(a->reserve(10)) << "what was refused keeps nothing free";
}

TEST_F(sharing_test, nobody_is_asked_without_a_timeout) {
  const sharer a = join(), b = join({}, milliseconds(0));
  ASSERT_TRUE(a->reserve(90));
  const auto cached = gives(a, reclaim_kind::cached);
  ASSERT_TRUE(a->start_thread());
  const status s = b->make_room(50);
  ASSERT_FALSE(s);
  EXPECT_TRUE(s.error().is(errc::busy));
  EXPECT_TRUE(events(quota_action::asked).empty());
  EXPECT_TRUE(b->make_room(10));
}

// Without a thread the program gives memory back where it polls, and a whole task only there.
TEST_F(sharing_test, a_task_is_taken_where_it_polls) {
  const sharer a = join(), b = join();
  ASSERT_TRUE(a->reserve(100));
  const auto task = gives(a, reclaim_kind::task);
  ASSERT_TRUE(a->start_thread());
  auto room = std::async(std::launch::async, [&] { return b->make_room(70).has_value(); });
  std::uint64_t given = 0;
  while (given == 0) {
    EXPECT_NE(room.wait_for(milliseconds(1)), std::future_status::ready);
    given = *a->poll();
  }
  EXPECT_EQ(given, 70u);
  EXPECT_TRUE(room.get());
  EXPECT_EQ(*a->poll(), 0u);
  EXPECT_EQ(a->stats()->waits.given[2], 70u);
}

TEST_F(sharing_test, what_is_in_use_is_given_once_it_is_not) {
  const sharer a = join(), b = join();
  ASSERT_TRUE(a->reserve(100));
  std::atomic<bool> in_use = true;
  std::atomic<int> asked = 0;
  const auto evicts =
      a->add_reclaimer(reclaim_kind::evictable, [&](std::uint64_t bytes) -> std::uint64_t {
        ++asked;
        if (in_use) return reclaim_later;
        EXPECT_TRUE(a->release(bytes));
        return bytes;
      });
  ASSERT_TRUE(a->start_thread());
  auto room = std::async(std::launch::async, [&] { return b->make_room(70).has_value(); });
  while (asked == 0) std::this_thread::yield();
  in_use = false;
  // This thread or the participant's own answers, whichever comes first.
  while (room.wait_for(milliseconds(1)) != std::future_status::ready) EXPECT_TRUE(a->poll());
  EXPECT_TRUE(room.get());
}

// A participant that answers seldom: the question about cached memory was replaced by that about the next kinds.
TEST_F(sharing_test, what_is_cheaper_is_given_first_whatever_is_asked_for) {
  const sharer a = join(), b = join();
  ASSERT_TRUE(a->reserve(100));
  const auto cached = gives(a, reclaim_kind::cached), task = gives(a, reclaim_kind::task);
  auto room = std::async(std::launch::async, [&] { return b->make_room(70).has_value(); });
  const auto asked_for_the_task = [&] {
    const auto asked = events(quota_action::asked);
    return std::any_of(asked.begin(), asked.end(),
                       [](const quota_event &e) { return e.kind == reclaim_kind::task; });
  };
  while (!asked_for_the_task()) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(*a->poll(), 70u);
  EXPECT_TRUE(room.get());
  EXPECT_EQ(a->stats()->waits.given[0], 70u);
  EXPECT_EQ(a->stats()->waits.given[2], 0u);
}

TEST_F(sharing_test, nothing_is_given_up_for_one_that_waits_no_more) {
  const sharer a = join(), b = join({}, milliseconds(150));
  ASSERT_TRUE(a->reserve(100));
  const auto cached = gives(a, reclaim_kind::cached);
  EXPECT_FALSE(b->make_room(70));
  ASSERT_EQ(events(quota_action::asked).size() > 0, true);
  EXPECT_EQ(*a->poll(), 0u);
  EXPECT_EQ(a->stats()->own, 100u);
}

// Each is asked while it waits itself: one is served, and then the other.
TEST_F(sharing_test, two_that_ask_each_other_are_both_served) {
  const sharer a = join(), b = join();
  ASSERT_TRUE(a->reserve(50) && b->reserve(50));
  const auto of_a = gives(a, reclaim_kind::cached), of_b = gives(b, reclaim_kind::cached);
  // Neither has a thread: the one that waits answers.
  std::atomic<int> done = 0;
  const auto grow = [&](const sharer &q) {
    return std::async(std::launch::async, [&] {
      bool served = true;
      for (int i = 0; i < 20 && served; ++i) {
        served = q->make_room(30) && q->reserve(30);
        q->end_room();
        if (q->stats()->own > 40) (void)q->release(30);  // unless the other has just got it
      }
      ++done;
      while (done < 2) (void)q->poll();
      return served;
    });
  };
  auto first = grow(a), second = grow(b);
  EXPECT_TRUE(first.get());
  EXPECT_TRUE(second.get());
  EXPECT_LE(a->stats()->reserved, 100u);
}

// Small requests that come later do not keep a large one waiting.
TEST_F(sharing_test, a_large_request_is_not_starved_by_small_ones) {
  const sharer holder = join(), large = join(), small = join({}, milliseconds(0));
  ASSERT_TRUE(holder->reserve(95));
  auto room = std::async(std::launch::async, [&] { return large->make_room(60).has_value(); });
  wait_until_waiting(1);
  EXPECT_FALSE(small->reserve(5)) << "5 are free, and kept for the large request";
  for (int i = 0; i < 11; ++i) {
    ASSERT_TRUE(holder->release(5));
    (void)small->reserve(5);
  }
  EXPECT_TRUE(room.get());
  EXPECT_EQ(small->stats()->own, 0u);
  EXPECT_EQ(large->stats()->own, 60u);
}

TEST_F(sharing_test, a_higher_priority_overtakes_a_bounded_number_of_times) {
  const sharer holder = join(), waits = join(), higher = join({.priority = 5}, milliseconds(0));
  ASSERT_TRUE(holder->reserve(95));
  auto room = std::async(std::launch::async, [&] { return waits->make_room(60).has_value(); });
  wait_until_waiting(1);
  int overtaken = 0;
  for (; overtaken < 100 && higher->reserve(1); ++overtaken) {
    ASSERT_TRUE(higher->release(1));
  }
  EXPECT_EQ(overtaken, 16);
  ASSERT_TRUE(holder->release(95));
  EXPECT_TRUE(room.get());
  EXPECT_EQ(waits->stats()->waits.most_overtaken, 16u);
  EXPECT_EQ(higher->stats()->waits.most_overtaken, 0u);
}

TEST_F(sharing_test, threads_of_one_participant_wait_one_after_another) {
  const sharer a = join(), b = join();
  ASSERT_TRUE(a->reserve(100));
  const auto cached = gives(a, reclaim_kind::cached, 10);
  ASSERT_TRUE(a->start_thread());
  std::vector<std::future<bool>> all;
  for (int i = 0; i < 8; ++i) {
    all.push_back(std::async(std::launch::async, [&] {
      if (!b->make_room(10)) return false;
      const bool reserved = b->reserve(10).has_value();
      b->end_room();
      return reserved;
    }));
  }
  for (auto &one : all) EXPECT_TRUE(one.get());
  EXPECT_EQ(b->stats()->own, 80u);
  EXPECT_EQ(a->stats()->own, 20u);
}

// A registration ends when no call of it runs any more.
TEST_F(sharing_test, a_reclaimer_is_not_called_after_its_end) {
  const sharer a = join(), b = join({}, milliseconds(400));
  ASSERT_TRUE(a->reserve(100));
  std::atomic<bool> in_call = false, leave = false, ended = false;
  auto evicts = a->add_reclaimer(reclaim_kind::cached, [&](std::uint64_t) -> std::uint64_t {
    EXPECT_FALSE(ended);
    in_call = true;
    while (!leave) std::this_thread::yield();
    EXPECT_FALSE(ended);
    return 0;
  });
  ASSERT_TRUE(a->start_thread());
  auto room = std::async(std::launch::async, [&] { return b->make_room(70).has_value(); });
  while (!in_call) std::this_thread::yield();
  std::thread ends([&] {
    evicts.reset();
    ended = true;
  });
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(ended);
  leave = true;
  ends.join();
  EXPECT_FALSE(room.get());
  EXPECT_FALSE(a->stats()->participants[0].offers[0]);
}

// ---- other processes ----

class sharing_processes : public sharing_test {
 protected:
  // A participant that holds `bytes`, gives them back when asked if it `listens`, and lives until it is killed.
  pid_t start(std::uint64_t bytes, bool listens) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      const sharer q = join();
      const bool ok = q->reserve(bytes).has_value();
      const auto cached = gives(q, reclaim_kind::cached);
      const bool thread = !listens || q->start_thread().has_value();
      const char said = ok && thread ? 1 : 0;
      if (write(ready[1], &said, 1) != 1) _exit(1);
      for (;;) pause();
    }
    char said = 0;
    EXPECT_EQ(read(ready[0], &said, 1), 1);
    EXPECT_EQ(said, 1);
    close(ready[0]);
    close(ready[1]);
    return child;
  }
  static void kill_it(pid_t child) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
};

TEST_F(sharing_processes, give_memory_back_to_each_other) {
  const pid_t other = start(90, true);
  const sharer me = join();
  ASSERT_TRUE(me->make_room(50));
  me->end_room();
  const auto s = *shared_quota::stats_of(path_);
  ASSERT_EQ(s.participants.size(), 2u);
  EXPECT_EQ(s.reserved, 50u);
  kill_it(other);
}

TEST_F(sharing_processes, one_that_dies_while_it_is_asked_costs_no_wait) {
  const pid_t other = start(90, false);
  const sharer me = join({}, milliseconds(20'000));
  auto room = std::async(std::launch::async, [&] { return me->make_room(50).has_value(); });
  wait_until_waiting(1);
  kill_it(other);
  EXPECT_TRUE(room.get());
  EXPECT_EQ(shared_quota::stats_of(path_)->participants.size(), 1u);
  EXPECT_EQ(events(quota_action::left).size(), 1u);
}

TEST_F(sharing_processes, one_that_dies_is_said_to_have_left_once) {
  const pid_t dies = start(90, false);
  const sharer me = join();
  kill_it(dies);
  EXPECT_EQ(me->stats()->participants.size(), 1u);
  EXPECT_EQ(me->stats()->participants.size(), 1u);
  const auto left = events(quota_action::left);
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].process, static_cast<std::uint32_t>(dies));
  EXPECT_EQ(left[0].bytes, 90u);
}

TEST_F(sharing_processes, one_that_is_stopped_is_passed_over) {
  const pid_t stopped = start(50, true), gives_back = start(40, true);
  kill(stopped, SIGSTOP);
  int status = 0;
  ASSERT_EQ(waitpid(stopped, &status, WUNTRACED), stopped);
  const sharer me = join({}, milliseconds(20'000));
  EXPECT_TRUE(me->make_room(40)) << "30 of the other";
  wait_until_answered();
  EXPECT_EQ(events(quota_action::asked).size(), 2u);
  EXPECT_EQ(events(quota_action::answered).size(), 1u);
  me->end_room();
  kill_it(stopped);
  kill_it(gives_back);
}

TEST_F(sharing_processes, a_wait_of_a_dead_process_keeps_nothing_free) {
  const pid_t holder = start(95, false);
  const pid_t waits = fork();
  if (waits == 0) {
    const sharer q = join({}, milliseconds(60'000));
    (void)q->make_room(50);
    _exit(0);
  }
  wait_until_waiting(1);
  const sharer me = join({}, milliseconds(0));
  EXPECT_FALSE(me->reserve(5));
  kill_it(waits);
  EXPECT_TRUE(me->reserve(5));
  kill_it(holder);
}

TEST_F(sharing_processes, a_forked_child_has_no_thread_and_no_part) {
  const sharer a = join();
  const auto cached = gives(a, reclaim_kind::cached);
  ASSERT_TRUE(a->start_thread());
  ASSERT_TRUE(a->reserve(10));
  const pid_t child = fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    const bool refused = !a->make_room(5) && !a->poll() && !a->start_thread() && !a->reserve(1);
    a->end_room();
    const_cast<sharer &>(a).reset();
    _exit(refused ? 0 : 1);
  }
  int ended = 0;
  ASSERT_EQ(waitpid(child, &ended, 0), child);
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
  EXPECT_EQ(bells(), 1u);
  EXPECT_EQ(a->stats()->own, 10u);
}

// ---- limits and terms ----

TEST_F(sharing_test, terms_are_checked_when_one_joins) {
  const sharer a = join({.minimum = 70});
  const auto too_much = shared_quota::open(path_, {.terms = {.minimum = 31}});
  ASSERT_FALSE(too_much);
  EXPECT_TRUE(too_much.error().is(errc::invalid_argument));
  EXPECT_EQ(too_much.error().value, 31u);
  EXPECT_EQ(too_much.error().limit, 30u);
  EXPECT_FALSE(shared_quota::open(path_, {.terms = {.minimum = 20, .maximum = 10}}));
  EXPECT_FALSE(shared_quota::open(path_ + ".other", {}));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".other")) << "no limit, no file";
  EXPECT_TRUE(shared_quota::open(path_, {.terms = {.minimum = 30}}));
}

TEST_F(sharing_test, changes_say_whether_they_are_in_force) {
  const sharer a = join(), b = join();
  ASSERT_TRUE(a->reserve(60));
  const std::uint64_t before = a->stats()->revision;
  EXPECT_EQ(*shared_quota::set_limit(path_, 80, before), quota_change::applied);
  const auto stale = shared_quota::set_limit(path_, 90, before);
  ASSERT_FALSE(stale);
  EXPECT_TRUE(stale.error().is(errc::busy));
  EXPECT_EQ(stale.error().value, before + 1);
  EXPECT_EQ(*a->set_limit(50), quota_change::deferred);
  EXPECT_FALSE(b->reserve(1));
  ASSERT_TRUE(a->release(20));
  EXPECT_TRUE(b->reserve(10));
  const auto pid = static_cast<std::uint32_t>(getpid());
  EXPECT_EQ(*shared_quota::set_terms(path_, pid, {.maximum = 45}), quota_change::applied);
  EXPECT_EQ(*shared_quota::set_terms(path_, pid, {.maximum = 30}), quota_change::deferred)
      << "a has 40";
  EXPECT_FALSE(shared_quota::set_terms(path_, pid, {.minimum = 26}))
      << "both are of this process, and 52 are more than the limit";
  EXPECT_FALSE(shared_quota::set_terms(path_, 1, {})) << "no participant";
  EXPECT_FALSE(shared_quota::set_limit(path_, 0));
  const auto now = *a->stats();
  EXPECT_EQ(now.limit, 50u);
  EXPECT_EQ(now.revision, before + 4);
  EXPECT_EQ(now.participants[0].terms, (quota_terms{.maximum = 30}));
}

TEST_F(sharing_test, the_latest_events_are_kept) {
  const sharer a = join({}, milliseconds(0));
  ASSERT_TRUE(a->reserve(100));
  for (int i = 0; i < 600; ++i) (void)a->make_room(1);
  const auto all = *shared_quota::events_of(path_);
  ASSERT_EQ(all.size(), 512u);
  for (std::size_t i = 1; i < all.size(); ++i) {
    EXPECT_EQ(all[i].number, all[i - 1].number + 1);
    EXPECT_GE(all[i].time_ns, all[i - 1].time_ns);
  }
  EXPECT_EQ(all.back().action, quota_action::busy);
  EXPECT_STREQ(name_of(all.back().action), "busy");
}

}  // namespace
}  // namespace stillmap
