// copy_round: chunks known from the start, or added while others are taken.
#include "stillmap/checkpoint/migration/internal/copy_round.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

namespace stillmap::migration::testing {
namespace {

TEST(round, HandsOutEachOnceAndThenNothing) {
  copy_round r({4, 7, 9});
  EXPECT_EQ(r.take(true), 4u);
  EXPECT_EQ(r.take(false), 7u);
  EXPECT_EQ(r.take(true), 9u);
  EXPECT_EQ(r.take(true), std::nullopt);
  EXPECT_EQ(r.take(false), std::nullopt);
  EXPECT_EQ(r.all(), (std::vector<std::size_t>{4, 7, 9}));
}

TEST(round, OfNothingIsOver) {
  copy_round none(std::vector<std::size_t>{});
  EXPECT_EQ(none.take(true), std::nullopt);
  copy_round found;
  EXPECT_EQ(found.take(false), std::nullopt) << "not yet, and it is not to wait";
  EXPECT_TRUE(found.add({}));
  found.complete();
  EXPECT_EQ(found.take(true), std::nullopt);
}

TEST(round, GivenUpHandsOutNothingMoreAndSaysSo) {
  copy_round r;
  EXPECT_TRUE(r.add({1, 2}));
  EXPECT_EQ(r.take(true), 1u);
  r.give_up();
  EXPECT_EQ(r.take(true), std::nullopt);
  EXPECT_FALSE(r.add({3}));
  EXPECT_EQ(r.take(false), std::nullopt);
}

TEST(round, WhoWaitsIsWokenByMoreAndByTheEnd) {
  constexpr std::size_t most = 20'000;
  copy_round r;
  std::vector<std::atomic<int>> times(most);
  std::vector<std::thread> takers;
  for (int i = 0; i < 3; ++i) {
    takers.emplace_back([&] {
      while (const auto got = r.take(true)) ++times[*got];
    });
  }
  std::vector<std::size_t> some(100);
  for (std::size_t at = 0; at < most; at += some.size()) {
    std::iota(some.begin(), some.end(), at);
    EXPECT_TRUE(r.add(some));
    std::this_thread::yield();
  }
  r.complete();
  for (std::thread &t : takers) t.join();
  for (std::size_t i = 0; i < most; ++i) ASSERT_EQ(times[i], 1) << i;
}

TEST(round, FinderWaitsUntilFewAreLeft) {
  copy_round r;
  EXPECT_TRUE(r.add({0, 1, 2, 3, 4}));
  r.await_takers(2);  // no thread takes chunks, so this does not wait
  EXPECT_EQ(r.take(true), 0u);
  std::atomic<std::size_t> taken{1};
  std::thread receiver([&] {
    while (taken < 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ++taken;
      (void)r.take(true);
    }
  });
  r.await_takers(2);
  EXPECT_EQ(taken, 3u);
  receiver.join();
  r.await_takers(2);  // two are left: returns at once
}

TEST(round, FinderOfARoundGivenUpWaitsForNobody) {
  copy_round r;
  EXPECT_TRUE(r.add({0, 1, 2, 3, 4}));
  EXPECT_EQ(r.take(true), 0u);
  std::thread fails([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    r.give_up();
  });
  r.await_takers(0);
  fails.join();
  EXPECT_FALSE(r.add({5}));
}

}  // namespace
}  // namespace stillmap::migration::testing
