// A destination, with the test as its source, message by message: a data channel ends, another round
// or layout follows the seal, and a round is too long.
#include <gtest/gtest.h>

#include <thread>

#include "stillmap/checkpoint/migration/internal/wire.h"
#include "tests/checkpoint/migration/endpoints.h"
#include "tests/checkpoint/migration/hostile_source.h"
#include "tests/support/buffer_test.h"
#include "tests/support/far_away.h"

namespace stillmap::migration::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t session_chunk_bytes = 64 << 10;
constexpr std::chrono::milliseconds reply_timeout = 10s;

// Of one page, which has this number.
layout_message session_layout(std::size_t page_bytes, std::uint32_t number) {
  layout_message l;
  const device_address at(stillmap::testing::far_away);
  l.layout.blocks = {{{at, page_bytes}, "weights"}};
  physical_properties here;
  here.location = on_device(checkpoint::memory_layout::own_device);
  l.layout.pages = {{page_bytes, here}};
  l.layout.access = {{{on_device(checkpoint::memory_layout::own_device), access_mode::read_write}}};
  l.layout.places = {{at, 0, 0}};
  l.pages = {number};
  return l;
}

class session_by_hand : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    site_.emplace();
    options_ = destination_options(*site_);
    options_.resolve_timeout = 1h;
    auto made = receiver::create(dev(), at_destination(*site_), options_);
    ASSERT_TRUE(made) << made.error().message();
    at_.emplace(std::move(*made));
    begin();
  }
  void TearDown() override {
    control_.reset();
    data_.reset();
    at_.reset();
    buffer_test::TearDown();
  }

  std::size_t chunks() const { return page() / session_chunk_bytes; }

  // Of one page, up to the first round.
  void begin() {
    to_ = to_destination(*site_);
    control_ = connect();
    data_ = connect();
    ASSERT_TRUE(control_ && data_);
    tell(*control_, kind::hello, encode(hello{task_, 1, page(), session_chunk_bytes, 1, {}}));
    const auto welcome = reply(*control_, kind::welcome);
    ASSERT_TRUE(welcome) << welcome.error().message();
    session_ = decode_welcome(welcome->body).value().session;
    tell(*control_, kind::layout, encode(session_layout(page(), 3)));
    ASSERT_TRUE(reply(*control_, kind::prepared));
    tell(*data_, kind::join, encode(session_));
    ASSERT_TRUE(reply(*data_, kind::welcome));
  }

  std::unique_ptr<channel> connect() const {
    auto c = to_->connect(reply_timeout);
    if (!c || !(*c)->handshake(reply_timeout)) return nullptr;
    return std::move(*c);
  }
  static void tell(channel &to, kind what, std::span<const std::byte> body = {},
                   std::uint64_t number = 0) {
    ASSERT_TRUE(send(to, what, body, reply_timeout, number));
  }
  static result<message> reply(channel &from, kind want) {
    return migration::receive(from, want, 1 << 20, reply_timeout);
  }
  // Chunk i of the page, all zeros.
  void send_zeros(std::size_t i) {
    header h{kind::zeros, 0, chunk_number(3, static_cast<std::uint32_t>(i)),
             image::digest_of_zeros({}, session_chunk_bytes).value()};
    std::byte bytes[header::bytes];
    encode(h, bytes);
    ASSERT_TRUE(data_->send(bytes, reply_timeout));
  }
  void end_round(std::uint64_t number) {
    tell(*data_, kind::round_end, {}, number);
    const auto received = reply(*control_, kind::round_received);
    ASSERT_TRUE(received) << received.error().message();
    EXPECT_EQ(received->head.number, number);
    EXPECT_TRUE(decode_numbers(received->body)->empty());
  }

  // Of the page, with nothing but zeros.
  void seal() {
    const auto zeros = image::digest_of_zeros({}, session_chunk_bytes).value();
    tell(*control_, kind::seal, encode(std::vector<image::digest>(chunks(), zeros)));
    const auto verified = reply(*control_, kind::verified);
    ASSERT_TRUE(verified) << verified.error().message();
    EXPECT_TRUE(decode_numbers(verified->body)->empty());
  }

  std::optional<test_site> site_;
  receive_options options_;
  std::optional<receiver> at_;
  std::unique_ptr<transport> to_;
  std::unique_ptr<channel> control_, data_, silent_[2];
  const task_id task_{{std::byte{5}}};
  session_id session_;
};

// The source may be waiting for a reply on the control channel.
TEST_F(session_by_hand, a_data_channel_that_ends_ends_the_control_channel) {
  data_->shutdown();
  const auto refusal = reply(*control_, kind::round_received);
  ASSERT_FALSE(refusal);
  EXPECT_FALSE(refusal.error().is(errc::busy)) << refusal.error().message();
  const auto end = reply(*control_, kind::round_received);
  ASSERT_FALSE(end);
  EXPECT_FALSE(end.error().is(errc::busy)) << "it is still open";
}

TEST_F(session_by_hand, a_seal_is_of_no_use_after_another_round) {
  for (std::size_t i = 0; i < chunks(); ++i) send_zeros(i);
  end_round(1);
  seal();
  end_round(2);
  tell(*control_, kind::commit, encode(outcome_query{task_, session_, 2}));
  const auto owned = reply(*control_, kind::owner);
  ASSERT_FALSE(owned);
  EXPECT_TRUE(owned.error().is(errc::corrupt)) << owned.error().message();
  EXPECT_FALSE(at_->receive(0ms));
}

// Regression: the task was accepted, with a page that nothing had arrived for.
TEST_F(session_by_hand, a_seal_is_of_no_use_after_another_layout) {
  for (std::size_t i = 0; i < chunks(); ++i) send_zeros(i);
  end_round(1);
  seal();
  tell(*control_, kind::layout, encode(session_layout(page(), 4)));
  ASSERT_TRUE(reply(*control_, kind::prepared));
  tell(*control_, kind::commit, encode(outcome_query{task_, session_, 2}));
  const auto owned = reply(*control_, kind::owner);
  ASSERT_FALSE(owned);
  EXPECT_TRUE(owned.error().is(errc::corrupt)) << owned.error().message();
  EXPECT_FALSE(at_->receive(0ms));
}

TEST_F(session_by_hand, a_round_has_no_more_chunks_than_the_layout) {
  for (std::size_t i = 0; i < chunks(); ++i) send_zeros(i);
  end_round(1);
  for (std::size_t i = 0; i < chunks(); ++i) send_zeros(i);
  send_zeros(0);
  tell(*data_, kind::round_end, {}, 2);
  const auto refused = reply(*control_, kind::round_received);
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().is(errc::corrupt)) << refused.error().message();
  EXPECT_EQ(refused.error().value, chunks() + 1);
}

// Regression: it was that the connection is broken, because the session then closes the control
// channel.
TEST_F(session_by_hand, the_last_failure_is_what_a_data_channel_failed_with) {
  header h{kind::chunk, 4096, chunk_number(3, 0), {}};
  std::byte bytes[header::bytes];
  encode(h, bytes);
  ASSERT_TRUE(data_->send(bytes, reply_timeout));
  const auto refused = reply(*control_, kind::round_received);
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().is(errc::corrupt)) << refused.error().message();
  std::optional<error> why;
  for (int i = 0; i < 1000 && !why; ++i) {
    std::this_thread::sleep_for(10ms);
    why = at_->last_failure();
  }
  ASSERT_TRUE(why);
  EXPECT_TRUE(why->is(errc::corrupt)) << why->message();
  EXPECT_EQ(why->value, 4096u);
  EXPECT_EQ(why->limit, session_chunk_bytes);
}

// Regression: the first connection, which was silent and did not end, kept every other task out for
// ever: the commit had arrived on a second one.
TEST_F(session_by_hand, a_commit_on_another_connection_ends_the_first) {
  for (std::size_t i = 0; i < chunks(); ++i) send_zeros(i);
  end_round(1);
  seal();
  const outcome_query q{task_, session_, 2};
  const auto second = connect();
  ASSERT_TRUE(second);
  tell(*second, kind::query, encode(q));
  const auto found = reply(*second, kind::query_result);
  ASSERT_TRUE(found) << found.error().message();
  ASSERT_EQ(static_cast<outcome>(found->head.number), outcome::awaiting_commit);
  tell(*second, kind::commit, encode(q));
  const auto owned = reply(*second, kind::owner);
  ASSERT_TRUE(owned) << owned.error().message();
  const auto next = connect();
  ASSERT_TRUE(next);
  tell(*next, kind::hello, encode(hello{{{std::byte{6}}}, 1, page(), session_chunk_bytes, 1, {}}));
  const auto welcome = reply(*next, kind::welcome);
  EXPECT_TRUE(welcome) << welcome.error().message();
  const auto first = reply(*control_, kind::owner);
  ASSERT_FALSE(first);
  EXPECT_FALSE(first.error().is(errc::busy)) << "it is still open";
  EXPECT_TRUE(at_->receive(0ms));
}

// A program that ends must not lose a task whose source has given it up.
TEST_F(session_by_hand, a_receiver_that_is_closed_returns_what_has_arrived) {
  for (std::size_t i = 0; i < chunks(); ++i) send_zeros(i);
  end_round(1);
  seal();
  tell(*control_, kind::commit, encode(outcome_query{task_, session_, 2}));
  ASSERT_TRUE(reply(*control_, kind::owner));
  at_->close();
  EXPECT_TRUE(at_->receive(0ms));
  const auto next = connect();
  ASSERT_TRUE(next);
  tell(*next, kind::hello, encode(hello{{{std::byte{6}}}, 1, page(), session_chunk_bytes, 1, {}}));
  EXPECT_FALSE(reply(*next, kind::welcome));
}

TEST_F(session_by_hand, a_receiver_that_is_closed_cancels_what_is_not_decided) {
  for (std::size_t i = 0; i < chunks(); ++i) send_zeros(i);
  end_round(1);
  seal();
  at_->close();
  EXPECT_FALSE(at_->receive(0ms));
  const auto asks = connect();
  ASSERT_TRUE(asks);
  tell(*asks, kind::query, encode(outcome_query{task_, session_, 2}));
  const auto found = reply(*asks, kind::query_result);
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_EQ(static_cast<outcome>(found->head.number), outcome::refused);
}

// Regression: it was refused until the silent connection had timed out.
TEST_F(session_by_hand, a_source_that_begins_again_ends_its_silent_connection) {
  control_.swap(silent_[0]);
  data_.swap(silent_[1]);
  begin();
  if (HasFatalFailure()) return;
  for (std::size_t i = 0; i < chunks(); ++i) send_zeros(i);
  end_round(1);
  seal();
  tell(*control_, kind::commit, encode(outcome_query{task_, session_, 2}));
  const auto owned = reply(*control_, kind::owner);
  EXPECT_TRUE(owned) << owned.error().message();
  EXPECT_TRUE(at_->receive(reply_timeout));
}

using session_by_script = stillmap::testing::buffer_test;

// Regression: the task was accepted and its memory passed on, while a chunk was written to it.
TEST_F(session_by_script, a_commit_is_refused_while_a_round_is_under_way) {
  STILLMAP_NEEDS_VMM();
  const std::size_t chunks = page() / session_chunk_bytes;
  for (const bool late : {false, true}) {
    hostile_script s;
    const auto zeros = image::digest_of_zeros({}, session_chunk_bytes).value();
    s.message(0, kind::hello, 0, false, encode(hello{{}, 1, page(), session_chunk_bytes, 1, {}}));
    s.message(0, kind::layout, 0, false, encode(session_layout(page(), 3)));
    s.message(1, kind::join, 0, false, encode(session_id{}));
    for (std::uint32_t i = 0; i < chunks; ++i) {
      s.message(1, kind::zeros, chunk_number(3, i), true, {});
    }
    s.message(1, kind::round_end, 1, false, {});
    s.message(0, kind::seal, 0, false, encode(std::vector<image::digest>(chunks, zeros)));
    if (late) s.message(1, kind::zeros, chunk_number(3, 0), true, {});
    s.message(0, kind::commit, 0, false, encode(outcome_query{{}, {}, 2}));
    const hostile_outcome out = run_hostile_source(dev(), s.bytes());
    EXPECT_EQ(out.wrong, "");
    EXPECT_EQ(out.came, !late);
  }
}

}  // namespace
}  // namespace stillmap::migration::testing
