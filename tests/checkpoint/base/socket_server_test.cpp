// A server of connections: how many it serves at once, which of them it drops, what it keeps for a client and
// how long, and how it ends.
#include "stillmap/checkpoint/base/socket_server.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "stillmap/checkpoint/base/error_wire.h"
#include "tests/support/no_descriptors.h"
#include "tests/support/no_threads.h"
#include "tests/support/unique_name.h"

namespace stillmap::checkpoint::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::uint16_t echo = 1, keep = 2, hang = 3, answer = 4, refused = 5;

bool soon(const std::function<bool()> &is_so) {
  for (int i = 0; i < 4000; ++i) {
    if (is_so()) return true;
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

class socket_server_test : public ::testing::Test {
 protected:
  void SetUp() override { start(); }

  // Serves these requests: echo, keep (a lease) and hang (until it is to stop).
  void start(std::size_t max_connections = 4) {
    server_.reset();
    socket_server_options options;
    options.max_connections = max_connections;
    options.allow = [this](const peer_credentials &) { return allowed_.load(); };
    options.refuse = [](socket_channel &with, const error &why) {
      (void)with.send(refused, encode(why), {}, 0ms, {});
    };
    auto made = socket_server::create(
        address_, options,
        [this](socket_channel &with, std::atomic<bool> &claimed, const std::stop_token &stop) {
          return serve(with, claimed, stop);
        });
    ASSERT_TRUE(made) << made.error().message();
    server_.emplace(std::move(*made));
  }
  socket_server::lease serve(socket_channel &with, std::atomic<bool> &claimed,
                             const std::stop_token &stop) {
    const auto m = with.receive(1 << 16, 60s, stop);
    if (!m || claimed.exchange(true)) {
      ++unserved_;
      return nullptr;
    }
    if (m->kind == hang) {
      ++hanging_;
      while (!stop.stop_requested()) std::this_thread::sleep_for(1ms);
      --hanging_;
      return nullptr;
    }
    (void)with.send(answer, m->body, {}, 10s, stop);
    if (m->kind != keep) return nullptr;
    ++leases_;
    return {&leases_, [](std::atomic<int> *leases) { --*leases; }};
  }
  socket_channel reach() const {
    auto made = socket_channel::connect(address_, 10s);
    if (!made) throw std::runtime_error(made.error().message());
    return std::move(*made);
  }
  static std::uint16_t ask(socket_channel &with, std::uint16_t kind) {
    // One that refuses may have closed its end before: its refusal is there to be read.
    (void)with.send(kind, {}, {}, 10s, {});
    const auto m = with.receive(1 << 16, 60s, {});
    return m ? m->kind : std::uint16_t{0};
  }
  // A client that is served at last: another one may just be ending.
  bool is_served() const {
    return soon([&] {
      socket_channel with = reach();
      return ask(with, echo) == answer;
    });
  }
  static long descriptors() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  }

  const std::string address_ = '@' + stillmap::testing::unique_name("stillmap-server");
  std::atomic<bool> allowed_{true};
  std::atomic<int> leases_{0}, hanging_{0}, unserved_{0};
  std::optional<socket_server> server_;
};

TEST_F(socket_server_test, each_connection_is_served_once) {
  for (int i = 0; i < 20; ++i) {
    socket_channel with = reach();
    ASSERT_EQ(ask(with, echo), answer) << i;
    EXPECT_FALSE(with.receive(1 << 16, 10s, {})) << "it is closed";
  }
}

TEST_F(socket_server_test, a_busy_server_refuses_and_an_idle_connection_is_dropped) {
  start(2);
  std::vector<socket_channel> busy;
  for (int i = 0; i < 2; ++i) {
    busy.push_back(reach());
    ASSERT_TRUE(busy.back().send(hang, {}, {}, 10s, {}));
  }
  ASSERT_TRUE(soon([&] { return hanging_ == 2; }));
  socket_channel third = reach();
  const auto reply = third.receive(1 << 16, 10s, {});
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->kind, refused);
  EXPECT_TRUE(decode_peer_error(reply->body).is(errc::busy));
  start(2);
  std::vector<socket_channel> idle;
  for (int i = 0; i < 8; ++i) {
    idle.push_back(reach());
    if (i % 2 == 0) {
      ASSERT_EQ(::send(idle.back().fd(), "S", 1, MSG_NOSIGNAL), 1);
    }
  }
  EXPECT_TRUE(is_served());
  EXPECT_GE(unserved_, 6);
}

TEST_F(socket_server_test, a_lease_ends_with_its_connection_or_with_data) {
  std::vector<socket_channel> readers;
  for (int i = 0; i < 40; ++i) {  // more than are served at once
    readers.push_back(reach());
    ASSERT_EQ(ask(readers.back(), keep), answer) << i;
    ASSERT_TRUE(soon([&] { return leases_ == i + 1; }));
  }
  EXPECT_TRUE(is_served());
  readers.pop_back();
  EXPECT_TRUE(soon([&] { return leases_ == 39; }));
  ASSERT_EQ(::send(readers[0].fd(), "?", 1, MSG_NOSIGNAL), 1);
  EXPECT_TRUE(soon([&] { return leases_ == 38; }));
  ASSERT_EQ(::shutdown(readers[1].fd(), SHUT_WR), 0);
  EXPECT_TRUE(soon([&] { return leases_ == 37; }));
  EXPECT_FALSE(readers[1].receive(1 << 16, 10s, {})) << "it is closed";
  EXPECT_TRUE(is_served());
  EXPECT_EQ(leases_, 37);
  server_.reset();
  EXPECT_EQ(leases_, 0);
}

// Data behind the request is no part of it: the lease ends when the handler does.
TEST_F(socket_server_test, data_behind_a_request_ends_its_lease) {
  socket_channel with = reach();
  ASSERT_TRUE(with.send(keep, {}, {}, 10s, {}));
  ASSERT_TRUE(with.send(echo, {}, {}, 10s, {}));
  const auto reply = with.receive(1 << 16, 10s, {});
  ASSERT_TRUE(reply);
  EXPECT_FALSE(with.receive(1 << 16, 10s, {}));
  EXPECT_TRUE(soon([&] { return leases_ == 0; }));
}

TEST_F(socket_server_test, it_ends_while_it_serves) {
  std::vector<socket_channel> all;
  for (const std::uint16_t kind : {hang, hang, keep}) {
    all.push_back(reach());
    ASSERT_TRUE(all.back().send(kind, {}, {}, 10s, {}));
  }
  ASSERT_TRUE(soon([&] { return hanging_ == 2 && leases_ == 1; }));
  all.push_back(reach());  // says nothing
  server_.reset();
  EXPECT_EQ(hanging_, 0);
  EXPECT_EQ(leases_, 0);
  EXPECT_FALSE(socket_channel::connect(address_));
}

TEST_F(socket_server_test, another_user_is_refused_before_it_takes_a_place) {
  allowed_ = false;
  std::vector<socket_channel> strangers;
  for (int i = 0; i < 10; ++i) {
    strangers.push_back(reach());
    const auto reply = strangers.back().receive(1 << 16, 10s, {});
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->kind, refused);
    EXPECT_TRUE(decode_peer_error(reply->body).is(errc::not_supported));
  }
  allowed_ = true;
  EXPECT_TRUE(is_served());
}

TEST_F(socket_server_test, it_lacks_threads_and_descriptors_for_a_while) {
  const long before = descriptors();
  {
    const stillmap::testing::no_threads none;
    socket_channel with = reach();
    EXPECT_EQ(ask(with, echo), refused);
  }
  EXPECT_TRUE(is_served());
  socket_channel reader = reach();
  ASSERT_EQ(ask(reader, keep), answer);
  // The connections that were served are closed: one closed later would make room for the next.
  ASSERT_TRUE(soon([&] { return leases_ == 1 && descriptors() == before + 2; }));
  // A socket that is open, to connect with where none can be opened.
  std::optional<socket_channel> waits;
  {
    const int spare = ::dup(STDERR_FILENO);
    std::optional<stillmap::testing::no_descriptors> none(std::in_place);
    ::close(spare);  // one: that of the client
    waits.emplace(reach());
    ASSERT_TRUE(waits->send(echo, {}, {}, 10s, {}));
    EXPECT_FALSE(waits->receive(1 << 16, 300ms, {})) << "it waits in the backlog";
    EXPECT_EQ(leases_, 1);
  }
  const auto reply = waits->receive(1 << 16, 10s, {});
  ASSERT_TRUE(reply) << reply.error().message();
  EXPECT_EQ(reply->kind, answer);
}

TEST_F(socket_server_test, nothing_is_left_of_many_clients) {
  start(8);
  EXPECT_TRUE(is_served());
  const long before = descriptors();
  std::vector<std::thread> clients;
  std::atomic<int> served{0};
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] {
      for (int n = 0; n < 60; ++n) {
        socket_channel with = reach();
        switch ((n + i) % 4) {
          case 0:
            break;  // goes away at once
          case 1:
            (void)::send(with.fd(), "SMHO", 4, MSG_NOSIGNAL);
            break;
          case 2:
            (void)with.send(keep, {}, {}, 10s, {});
            break;
          default:
            served += ask(with, echo) == answer ? 1 : 0;
        }
      }
    });
  }
  for (std::thread &c : clients) c.join();
  EXPECT_GT(served, 0);
  EXPECT_TRUE(is_served()) << "behind all that were in the backlog";
  EXPECT_TRUE(soon([&] { return leases_ == 0 && descriptors() <= before; }))
      << before << " / " << descriptors();
}

TEST_F(socket_server_test, a_forked_child_has_none_of_its_connections) {
  socket_channel reader = reach();
  ASSERT_EQ(ask(reader, keep), answer);
  int over[2], begun[2];
  ASSERT_EQ(::pipe(over), 0);
  ASSERT_EQ(::pipe(begun), 0);
  char nothing = 0;
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(over[1]);
    (void)!::write(begun[1], &nothing, 1);
    (void)!::read(over[0], &nothing, 1);
    ::_exit(0);
  }
  ASSERT_EQ(::read(begun[0], &nothing, 1), 1);
  ::close(begun[0]);
  ::close(begun[1]);
  server_.reset();
  EXPECT_FALSE(reader.receive(1 << 16, 10s, {})) << "the child has a copy";
  EXPECT_NO_FATAL_FAILURE(start());
  EXPECT_TRUE(is_served());
  ::close(over[0]);
  ::close(over[1]);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST_F(socket_server_test, wrong_options_are_refused) {
  socket_server_options options;
  options.max_connections = 0;
  const auto made = socket_server::create(address_ + "-2", options, {});
  ASSERT_FALSE(made);
  EXPECT_TRUE(made.error().is(errc::invalid_argument));
  const auto taken = socket_server::create(address_, {}, {});
  ASSERT_FALSE(taken);
  EXPECT_TRUE(taken.error().is(errc::busy));
}

}  // namespace
}  // namespace stillmap::checkpoint::testing
