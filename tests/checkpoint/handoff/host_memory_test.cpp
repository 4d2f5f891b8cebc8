// Each host allocation of send(), and of receive(), fails in turn: afterwards one process owns the
// memory and the other has none of it. The other end is a process that serves one handoff after the
// other.
#include <gtest/gtest.h>

#include <unistd.h>

#include <optional>
#include <random>

#include "stillmap/checkpoint/handoff/handoff.h"
#include "tests/checkpoint/handoff/processes.h"
#include "tests/support/held.h"
#include "tests/support/host_memory_sweep.h"
#include "tests/support/sample_task.h"
#include "tests/support/unique_name.h"

namespace stillmap::handoff::testing {
namespace {

using stillmap::testing::allocation_sweep;
using stillmap::testing::fail_each_allocation;
using stillmap::testing::failing_allocation;
using stillmap::testing::held;
using stillmap::testing::one_in;
using namespace std::chrono_literals;
using namespace stillmap::testing::sample;

using checkpoint::restored_memory;

class handoff_without_host_memory : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    STILLMAP_NEEDS_VMM();
    if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
    STILLMAP_ONE_PROFILE_DOES();
    if (part() == "receiver") receiver();
    if (part() == "sender") sender();
    std::random_device random;
    where_ = "@stillmap-test-" + std::to_string(random()) + '-' + std::to_string(random());
  }

  static handoff_options options() {
    handoff_options options;
    options.timeout = 30s;
    return options;
  }

  // The other process, until it is ended.
  [[noreturn]] void receiver() {
    auto at = checkpoint::socket_listener::create(meeting_place());
    if (!at) say_and_end(at.error().message());
    for (std::size_t round = 0;; ++round) {
      auto from = at->accept(30s);
      if (!from) say_and_end(from.error().message());
      const held before = held::now(driver());
      {
        const auto received = receive(dev(), *from, options());
        const std::string wrong = received ? task::wrong(dev()) : "";
        if (!wrong.empty()) say_and_end(wrong);
        say(round, received ? "owner" : "nothing");
      }
      const std::string left = before.more_now(driver());
      if (!left.empty()) say_and_end("leaks: " + left);
    }
  }
  [[noreturn]] void sender() {
    for (std::size_t round = 0;; ++round) {
      const task t(dev());
      auto to = connection::connect(meeting_place(), 30s);
      if (!to) say_and_end(to.error().message());
      const auto sent = send(dev(), *to, both, options());
      const std::string wrong = sent ? "" : task::wrong(dev());
      if (!wrong.empty()) say_and_end(wrong);
      say(round, sent ? sent->unmapped ? "sent" : "sent, mapped" : "owner");
    }
  }

  std::string where_;
  allocation_sweep all_;
};

TEST_F(handoff_without_host_memory, a_sender_keeps_or_gives_the_memory) {
  expect_unreturnable();  // that memory which has moved could not be unmapped here is reported
  other_process there("receiver", where_);
  std::size_t round = 0;
  const handoff_options options = this->options();
  const auto mapped = [&] { return dev().space().stats().mapped_bytes; };
  for (const bool all_after : {false, true}) {
    all_ += fail_each_allocation(
        [&](failing_allocation &failing) {
          const held before = held::now(driver());
          {
            const task t(dev());
            const auto whole = mapped();
            const std::uint64_t reported = background_error_count();
            bool sent = false, unmapped = true;
            {
              auto to = connection::connect(where_, 30s);
              ASSERT_DONE(to);
              const held now = held::now(driver());
              const auto done = failing([&] { return send(dev(), *to, both, options); });
              sent = done.has_value();
              unmapped = !done || done->unmapped;
              EXPECT_EQ(background_error_count() == reported, unmapped);
              if (!done) {
                EXPECT_EQ(mapped(), whole);
                EXPECT_EQ(now.more_now(driver()), "");
              }
            }
            EXPECT_EQ(there.said(round++), sent ? "owner" : "nothing");
            if (!sent) {
              EXPECT_EQ(task::wrong(dev()), "");
              auto to = connection::connect(where_, 30s);
              ASSERT_DONE(to);
              ASSERT_DONE(send(dev(), *to, both, options));
              EXPECT_EQ(there.said(round++), "owner");
            }
            EXPECT_TRUE(!unmapped || mapped() == page()) << "what was not sent";
          }
          EXPECT_EQ(before.more_now(driver()), "");
        },
        all_after, all_after ? one_in(7) : one_in(2));
  }
  EXPECT_GT(all_.points, stillmap::testing::fewest_points(30));
  all_.note("handoff::send", one_in(2) == 1 ? "" : " (one in 2; all from one in 7 on)");
}

TEST_F(handoff_without_host_memory, a_receiver_gets_the_memory_or_nothing) {
  auto at = listener::create(where_);
  ASSERT_DONE(at);
  other_process there("sender", where_);
  std::size_t round = 0;
  const handoff_options options = this->options();
  const auto expect_owner = [&](const std::string &sender) {
    EXPECT_EQ(sender, "sent");
    EXPECT_EQ(task::wrong(dev()), "");
  };
  for (const bool all_after : {false, true}) {
    all_ += fail_each_allocation(
        [&](failing_allocation &failing) {
          const held before = held::now(driver());
          bool received = false;
          {
            std::optional<restored_memory> memory;
            {
              auto from = at->accept(30s);
              ASSERT_DONE(from);
              auto done = failing([&] { return receive(dev(), *from, options); });
              if (done) memory.emplace(std::move(*done));
            }
            received = memory.has_value();
            const std::string sender = there.said(round++);
            if (received) {
              expect_owner(sender);
            } else {
              EXPECT_EQ(sender, "owner");
            }
          }
          EXPECT_EQ(dev().space().stats().live_blocks, 0u);
          EXPECT_EQ(before.more_now(driver()), "");
          if (received) return;
          auto from = at->accept(30s);
          ASSERT_DONE(from);
          const auto again = receive(dev(), *from, options);
          ASSERT_DONE(again);
          expect_owner(there.said(round++));
        },
        all_after, all_after ? one_in(7) : one_in(2));
  }
  EXPECT_GT(all_.points, stillmap::testing::fewest_points(40));
  all_.note("handoff::receive", one_in(2) == 1 ? "" : " (one in 2; all from one in 7 on)");
}

// Connections and listeners: no descriptor and no path is left.
TEST_F(handoff_without_host_memory, sockets_are_closed) {
  // Short enough for a socket, unlike paths in TempDir().
  const std::string path = stillmap::testing::unique_name("/tmp/stillmap-handoff");
  std::optional<listener> at;
  all_ += fail_each_allocation([&](failing_allocation &failing) {
    auto made = failing([&] { return listener::create(path); });
    if (made) at.emplace(std::move(*made));
    EXPECT_EQ(::access(path.c_str(), F_OK) == 0, at.has_value());
    at.reset();
  });
  auto made = checkpoint::socket_listener::create(where_);
  ASSERT_DONE(made);
  const std::vector<std::byte> body(3000, std::byte{7});
  int pipes[2] = {};
  ASSERT_EQ(::pipe(pipes), 0);
  const held before = held::now(driver());
  all_ += fail_each_allocation([&](failing_allocation &failing) {
    {
      auto to = connection::connect(where_, 1s);
      ASSERT_DONE(to);
      auto from = made->accept(1s);
      ASSERT_DONE(from);
      ASSERT_DONE(to->send(1, body, pipes, 1s, {}));
      const auto m = failing([&] { return from->receive(4000, 1s, {}); });
      EXPECT_TRUE(!m || (m->body == body && m->fds.size() == 2));
    }
    EXPECT_EQ(before.more_now(driver()), "");
  });
  ::close(pipes[0]);
  ::close(pipes[1]);
  EXPECT_GT(all_.points, stillmap::testing::fewest_points(2));
  all_.note("checkpoint::socket_channel");
}

}  // namespace
}  // namespace stillmap::handoff::testing
