// What the source copies with: rounds of chunks, known from the start or added while others are
// taken; the limit of its bandwidth; its connections, when it is cancelled.
#include "stillmap/checkpoint/migration/internal/copy_round.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <numeric>
#include <thread>

#include "stillmap/checkpoint/migration/internal/source_connections.h"
#include "tests/support/buffer_test.h"

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

// Of 1 MB/s, asked about 1,000 bytes at a time: 1 ms each.
constexpr std::uint64_t megabyte_per_second = 1'000'000, ms_of_bytes = 1000;
constexpr rate_limiter::clock::time_point some_time{std::chrono::hours(5)};

TEST(rate_limit, idle_time_earns_no_more_than_one_burst) {
  using namespace std::chrono_literals;
  rate_limiter l(megabyte_per_second);
  for (const auto now : {some_time, some_time + 1h, some_time + 2h}) {
    for (int i = 0; i < 30; ++i) {
      ASSERT_EQ(l.reserve(ms_of_bytes, now), now - rate_limiter::burst + i * 1ms) << i;
    }
  }
}

TEST(rate_limit, a_busy_sender_keeps_the_rate) {
  using namespace std::chrono_literals;
  rate_limiter l(megabyte_per_second);
  auto now = some_time;
  for (int i = 0; i < 1000; ++i) {
    const auto then = l.reserve(ms_of_bytes, now);
    ASSERT_EQ(then, some_time - rate_limiter::burst + i * 1ms) << i;
    now = std::max(now, then);
  }
  // A delay shorter than a burst is caught up on.
  const auto next = some_time - rate_limiter::burst + 1000ms;
  EXPECT_EQ(l.reserve(5 * ms_of_bytes, next + rate_limiter::burst / 2), next);
  EXPECT_EQ(l.reserve(ms_of_bytes, next), next + 5ms) << "as long as five";
}

TEST(rate_limit, threads_in_any_order_share_the_rate) {
  using namespace std::chrono_literals;
  rate_limiter l(megabyte_per_second);
  EXPECT_EQ(l.reserve(ms_of_bytes, some_time + 20ms), some_time + 10ms);
  EXPECT_EQ(l.reserve(ms_of_bytes, some_time), some_time + 11ms) << "looked at the clock earlier";
  std::mutex mutex;
  std::vector<rate_limiter::clock::time_point> times;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 100; ++n) {
        const auto then = l.reserve(ms_of_bytes, some_time + i * 1ms);
        const std::lock_guard lock(mutex);
        times.push_back(then);
      }
    });
  }
  for (std::thread &t : threads) t.join();
  std::sort(times.begin(), times.end());
  ASSERT_EQ(times.size(), 400u);
  for (int i = 0; i < 400; ++i) {
    ASSERT_EQ(times[static_cast<std::size_t>(i)], some_time + 12ms + i * 1ms) << i;
  }
}

TEST(rate_limit, none_means_at_once) {
  rate_limiter l(0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(l.reserve(std::uint64_t{1} << 60, some_time), some_time);
}

// A destination that welcomes every channel, and says no more.
class welcoming_transport final : public transport {
 public:
  // Of one channel.
  struct seen {
    bool shut_down = false, shut_down_before_handshake = false;
  };
  std::deque<seen> channels;

  result<std::unique_ptr<channel>> connect(std::chrono::milliseconds) override {
    return std::make_unique<welcoming_channel>(channels.emplace_back());
  }

 private:
  class welcoming_channel final : public channel {
   public:
    explicit welcoming_channel(seen &s) : seen_(s) {}
    status handshake(std::chrono::milliseconds) override {
      seen_.shut_down_before_handshake = seen_.shut_down;
      return seen_.shut_down ? fails() : status();
    }
    peer_identity peer() const override { return {}; }
    status send(std::span<const std::byte> bytes, std::chrono::milliseconds) override {
      const auto h = decode_header(bytes.first<header::bytes>());
      const bool names_session = h && h->what == kind::hello;
      const auto body = names_session ? encode(welcome_message{}) : std::vector<std::byte>();
      reply_.resize(header::bytes);
      encode(header{kind::welcome, body.size(), 0, {}}, std::span(reply_).first<header::bytes>());
      reply_.insert(reply_.end(), body.begin(), body.end());
      return {};
    }
    status receive(std::span<std::byte> into, std::chrono::milliseconds) override {
      if (into.size() > reply_.size()) return fails();
      const auto end = reply_.begin() + static_cast<std::ptrdiff_t>(into.size());
      std::copy(reply_.begin(), end, into.begin());
      reply_.erase(reply_.begin(), end);
      return {};
    }
    void shutdown() noexcept override { seen_.shut_down = true; }

   private:
    static status fails() { return make_error(errc::busy, "there is no more"); }
    seen &seen_;
    std::vector<std::byte> reply_;
  };
};

class cancelled_connections : public stillmap::testing::buffer_test {
 protected:
  hello greeting() const { return {task_id{}, 1, page(), 64 << 10, 2, {}}; }
};

// A peer that never answers the handshake would otherwise delay the end by the whole timeout.
TEST_F(cancelled_connections, a_connection_made_after_the_cancel_fails_in_its_handshake) {
  welcoming_transport to;
  const send_options options;
  source_connections c(dev(), options);
  c.shutdown();
  EXPECT_FALSE(c.open(to, greeting()));
  ASSERT_EQ(to.channels.size(), 1u);
  EXPECT_TRUE(to.channels[0].shut_down_before_handshake);
}

TEST_F(cancelled_connections, a_cancel_shuts_every_channel_down) {
  welcoming_transport to;
  send_options options;
  options.chunk_bytes = greeting().chunk_bytes;
  source_connections c(dev(), options);
  status s = c.open(to, greeting());
  ASSERT_TRUE(s) << s.error().message();
  s = c.open_channels(to);
  ASSERT_TRUE(s) << s.error().message();
  ASSERT_EQ(to.channels.size(), 3u);
  for (const auto &one : to.channels) EXPECT_FALSE(one.shut_down);
  c.shutdown();
  for (const auto &one : to.channels) EXPECT_TRUE(one.shut_down);
}

}  // namespace
}  // namespace stillmap::migration::testing
