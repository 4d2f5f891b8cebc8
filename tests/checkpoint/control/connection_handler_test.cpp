// Clients that arrive concurrently, disconnect, stall or are not allowed; and a server that is
// destroyed during a request.
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <thread>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/base/socket_listener.h"
#include "stillmap/checkpoint/control/client.h"
#include "stillmap/checkpoint/control/internal/messages.h"
#include "tests/checkpoint/control/task.h"
#include "tests/support/no_descriptors.h"
#include "tests/support/unique_name.h"

namespace stillmap::control::testing {
namespace {

using checkpoint::backing_store;
using connection = checkpoint::socket_channel;
using words = std::vector<std::string>;

constexpr std::chrono::milliseconds patience(30'000);

class connections : public control_test {
 protected:
  void SetUp() override {
    control_test::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) make_memory();
  }
  // A task whose quiesce() returns when the test releases it.
  server_options held() {
    server_options o = written_down();
    o.task.quiesce = [this, before = o.task.quiesce](auto tags, std::stop_token stop) {
      const status s = before(tags, stop);
      stopping_.set_value();
      while (release_.wait_for(std::chrono::milliseconds(5)) != std::future_status::ready) {
        if (stop.stop_requested()) {
          return status(
              tl::unexpected(error{make_error_code(errc::busy), "my_task::stop", "told to hurry"}));
        }
      }
      return s;
    };
    return o;
  }
  connection reach() const {
    auto c = connection::connect(where(), patience);
    if (!c) throw std::runtime_error(c.error().message());
    return std::move(*c);
  }
  snapshot_request save() const {
    snapshot_request r;
    r.tags = {"weights"};
    r.path = file("a.smi");
    return r;
  }
  // The response, or the refusal as an error.
  result<bytes> said(connection &c) const {
    const auto came = c.receive(max_response_bytes, patience, {});
    if (!came) return tl::unexpected(came.error());
    if (came->kind != static_cast<std::uint16_t>(kind::refusal)) return bytes(came->body);
    return tl::unexpected(decode_refusal(came->body));
  }

  std::promise<void> stopping_, let_go_;
  std::future<void> release_ = let_go_.get_future();
};

TEST_F(connections, a_second_request_is_refused_as_busy_and_status_is_answered) {
  start(held());
  auto first = std::async(std::launch::async, [&] {
    return ask().suspend({"weights", backing_store::pinned_host, ""});
  });
  stopping_.get_future().wait();
  const auto second = ask().resume("cache");
  ASSERT_FALSE(second);
  EXPECT_TRUE(second.error().is(errc::busy));
  EXPECT_EQ(second.error().value, static_cast<std::uint64_t>(request_kind::suspend));
  EXPECT_NE(second.error().message().find("suspend, for "), std::string::npos)
      << second.error().message();
  EXPECT_FALSE(ask().snapshot(save()));
  const auto s = ask().status();
  ASSERT_TRUE(s) << s.error().message();
  EXPECT_EQ(s->job.request, request_kind::suspend);
  let_go_.set_value();
  EXPECT_TRUE(first.get());
  EXPECT_EQ(ask().status()->job.request, request_kind::none);
  EXPECT_TRUE(ask().resume("weights"));
  EXPECT_TRUE(memory_is_whole());
  EXPECT_EQ(seen(), (words{"stop weights", "go weights"}));
}

TEST_F(connections, a_snapshot_of_a_client_that_disconnects_is_cancelled) {
  start(held());
  {
    connection gone = reach();
    ASSERT_TRUE(
        gone.send(static_cast<std::uint16_t>(kind::snapshot), encode(save()), {}, patience, {}));
    stopping_.get_future().wait();
  }
  let_go_.set_value();
  while (ask().status()->job.request != request_kind::none) std::this_thread::yield();
  EXPECT_EQ(seen(), (words{"stop weights", "go weights"}));
  EXPECT_EQ(files(), 0u);
}

// As where the process was stopped by a signal when the request came: it does not suspend itself once it goes on.
TEST_F(connections, a_request_of_a_client_that_is_gone_before_it_begins_is_not_carried_out) {
  server_options o = written_down();
  std::promise<void> gone;
  o.allow = [&, is_gone = gone.get_future().share()](const auto &) {
    is_gone.wait();
    return true;
  };
  start(std::move(o));
  {
    connection c = reach();
    const suspend_request r{"weights", backing_store::pinned_host, ""};
    ASSERT_TRUE(c.send(static_cast<std::uint16_t>(kind::suspend), encode(r), {}, patience, {}));
  }
  gone.set_value();
  EXPECT_TRUE(ask().status());
  stop();  // waits for requests
  EXPECT_EQ(seen().size(), 0u);
  EXPECT_TRUE(memory_is_whole());
}

TEST_F(connections, the_server_can_be_destroyed_during_a_request) {
  start(held());
  auto first = std::async(std::launch::async, [&] { return ask().snapshot(save()); });
  stopping_.get_future().wait();
  stop();
  const auto no = first.get();
  ASSERT_FALSE(no);
  EXPECT_EQ(files(), 0u);
  EXPECT_TRUE(memory_is_whole());
  const auto nobody = ask().status();
  ASSERT_FALSE(nobody);
  EXPECT_TRUE(nobody.error().code == std::errc::connection_refused) << nobody.error().message();
}

// The snapshot has begun when the server is destroyed: it is cancelled, and the task resumes.
TEST_F(connections, a_server_that_is_destroyed_cancels_a_snapshot) {
  STILLMAP_NEEDS_HOSTCUDA();
  server_options o = written_down();
  std::stop_token told;
  o.task.quiesce = [&, before = o.task.quiesce](auto tags, std::stop_token stop) {
    told = stop;
    return before(tags, stop);
  };
  start(std::move(o));
  std::thread ends;
  std::function<void()> act = [&] {
    ends = std::thread([this] { stop(); });
    while (!told.stop_requested()) std::this_thread::yield();
  };
  stillmap::testing::hostcuda_control::before("cuMemcpyDtoHAsync", 1, act);
  auto first = std::async(std::launch::async, [&] { return ask().snapshot(save()); });
  EXPECT_FALSE(first.get());
  ends.join();
  EXPECT_EQ(seen(), (words{"stop weights", "go weights"}));
  EXPECT_EQ(files(), 0u);
  EXPECT_TRUE(memory_is_whole());
}

// This thread as another user: glibc's seteuid() would change all threads.
class other_user {
 public:
  explicit other_user(uid_t uid) { done_ = ::syscall(SYS_setresuid, -1, uid, -1) == 0; }
  other_user(const other_user &) = delete;
  ~other_user() { EXPECT_TRUE(!done_ || ::syscall(SYS_setresuid, -1, 0, -1) == 0); }
  explicit operator bool() const { return done_; }

 private:
  bool done_ = false;
};

// Regression: a client did not look at who listens, and root could not operate a user's task.
TEST(control_users, are_the_same_or_root) {
  if (::geteuid() != 0 || !other_user(1)) {
    GTEST_SKIP() << "needs root, and users that a user namespace maps, to be several users";
  }
  const std::string address = stillmap::testing::unique_name("@stillmap-users");
  std::optional<checkpoint::socket_listener> at;
  {
    const other_user first(1);
    ASSERT_TRUE(first);
    at.emplace(std::move(*checkpoint::socket_listener::create(address)));
    EXPECT_TRUE(checkpoint::is_same_user_or_root({1, 0, 0}));
    EXPECT_TRUE(checkpoint::is_same_user_or_root({1, 1, 1}));
    EXPECT_FALSE(checkpoint::is_same_user_or_root({1, 2, 2}));
  }
  client_options options;
  options.timeout = std::chrono::milliseconds(10);
  const client asks(address, options);
  const struct {
    uid_t user;
    bool refused;
  } cases[] = {{2, true}, {1, false}, {0, false}};
  for (const auto &c : cases) {
    SCOPED_TRACE(c.user);
    const other_user is(c.user);
    ASSERT_TRUE(is);
    const auto none = asks.status();  // nobody replies
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().is(errc::not_supported), c.refused) << none.error().message();
    if (c.refused) {
      EXPECT_EQ(none.error().value, 1u);
    }
  }
}

TEST_F(connections, a_client_that_is_not_allowed_is_refused) {
  server_options o = written_down();
  checkpoint::peer_credentials who;
  o.allow = [&](const checkpoint::peer_credentials &p) {
    who = p;
    return false;
  };
  start(std::move(o));
  const auto no = ask().status();
  ASSERT_FALSE(no);
  EXPECT_TRUE(no.error().is(errc::not_supported)) << no.error().message();
  EXPECT_EQ(no.error().value, ::geteuid());
  EXPECT_EQ(who.pid, ::getpid());
  EXPECT_FALSE(ask().suspend({"weights", backing_store::discard, ""}));
  EXPECT_EQ(seen(), words{});
}

// Regression: it took the place of a client that had not sent its request yet.
TEST_F(connections, a_client_that_is_not_allowed_takes_no_place) {
  std::atomic<int> asked{0};
  server_options o;
  o.timeout = patience;
  o.max_connections = 1;
  o.allow = [&](const checkpoint::peer_credentials &) { return asked++ == 0; };
  start(std::move(o));
  connection first = reach();  // accepted first: connections come in order
  for (int i = 0; i < 20; ++i) {
    connection foreign = reach();
    const auto told = said(foreign);
    ASSERT_FALSE(told);
    EXPECT_TRUE(told.error().is(errc::not_supported)) << told.error().message();
  }
  [[maybe_unused]] const stillmap::status sent = first.send(
      static_cast<std::uint16_t>(kind::status), encode(empty_request{}), {}, patience, {});
  const auto told = said(first);
  EXPECT_TRUE(told) << told.error().message();
}

// Regression: 16 of 25 requests of root failed.
TEST_F(connections, of_another_user_keep_nobody_out) {
  if (::geteuid() != 0 || !other_user(2)) {
    GTEST_SKIP() << "needs root, and users that a user namespace maps, to be several users";
  }
  start();
  std::atomic<bool> over{false};
  std::atomic<int> refused{0};
  std::vector<std::jthread> loops;
  for (int i = 0; i < 3; ++i) {
    loops.emplace_back([&] {
      const other_user foreign(2);
      while (!over) {
        const auto c = connection::connect(where());
        if (c) ++refused;
      }
    });
  }
  while (refused == 0) std::this_thread::yield();
  for (int i = 0; i < 10; ++i) {
    const auto s = ask().status();
    EXPECT_TRUE(s) << s.error().message();
  }
  over = true;
}

TEST_F(connections, a_client_that_stalls_is_dropped_and_delays_no_other) {
  server_options o;
  o.timeout = std::chrono::milliseconds(200);
  start(std::move(o));
  connection silent = reach();
  connection drips = reach();
  const std::byte one{0x53};
  ASSERT_EQ(::send(drips.fd(), &one, 1, MSG_NOSIGNAL), 1);
  EXPECT_TRUE(ask().status());
  const auto told = said(silent);
  ASSERT_FALSE(told);
  EXPECT_TRUE(told.error().is(errc::busy)) << told.error().message();
  EXPECT_FALSE(said(drips));
  EXPECT_FALSE(said(silent)) << "and then it is closed";
}

TEST_F(connections, one_more_than_there_may_be_requests_is_refused_as_busy) {
  server_options o = held();
  o.timeout = patience;
  o.max_connections = 1;
  start(std::move(o));
  auto first = std::async(std::launch::async, [&] { return ask().suspend({"weights"}); });
  stopping_.get_future().wait();
  const auto second = ask().status();
  ASSERT_FALSE(second);
  EXPECT_TRUE(second.error().is(errc::busy)) << second.error().message();
  EXPECT_EQ(second.error().limit, 1u);
  let_go_.set_value();
  EXPECT_TRUE(first.get());
  while (!ask().resume("weights")) std::this_thread::yield();
  server_options none;
  none.max_connections = 0;
  EXPECT_FALSE(server::create(dev(), new_place(), none));
}

// The client that comes meanwhile waits, and the server does not spin.
TEST_F(connections, a_server_without_descriptors_waits_for_them) {
  start(written_down());
  owned_fd to(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  ASSERT_TRUE(where().starts_with('@') && where().size() < sizeof name.sun_path);
  where().copy(name.sun_path, where().size());
  name.sun_path[0] = '\0';  // an abstract name
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + where().size());
  {
    const stillmap::testing::no_descriptors none;
    ASSERT_EQ(::connect(to.get(), reinterpret_cast<sockaddr *>(&name), bytes), 0);
    const std::clock_t before = std::clock();
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 5) << "processor time";
  }
  auto c = connection::adopt(std::move(to));
  ASSERT_TRUE(c);
  ASSERT_TRUE(c->send(static_cast<std::uint16_t>(kind::status), {}, {}, patience, {}));
  EXPECT_TRUE(c->receive(max_response_bytes, patience, {})) << "a refusal: the request is empty";
}

TEST_F(connections, malformed_requests_are_refused_without_effect) {
  server_options o = written_down();
  o.timeout = patience;
  start(std::move(o));
  const auto refused = [&](std::uint16_t k, bytes_view body) {
    connection c = reach();
    // A server that refuses a request by its header does not read the rest, so sending may fail.
    [[maybe_unused]] const stillmap::status sent = c.send(k, body, {}, patience, {});
    const auto told = said(c);
    EXPECT_FALSE(told) << k << " with " << body.size() << " bytes";
    return told ? error() : told.error();
  };
  // Not a frame; a frame larger than a request may be; a response; unknown kinds.
  {
    connection c = reach();
    const char text[] = "GET / HTTP/1.1\r\n\r\n";
    ASSERT_GT(::send(c.fd(), text, sizeof text, MSG_NOSIGNAL), 0);
    const auto told = said(c);
    ASSERT_FALSE(told);
    EXPECT_TRUE(told.error().is(errc::corrupt)) << told.error().message();
  }
  EXPECT_TRUE(refused(static_cast<std::uint16_t>(kind::suspend), bytes(max_request_bytes + 1))
                  .is(errc::corrupt));
  EXPECT_TRUE(refused(static_cast<std::uint16_t>(kind::response), {}).is(errc::corrupt));
  EXPECT_TRUE(refused(2, {}).is(errc::corrupt));
  // With file descriptors.
  {
    connection c = reach();
    const int fd = STDOUT_FILENO;
    ASSERT_TRUE(c.send(static_cast<std::uint16_t>(kind::status), encode(empty_request{}), {&fd, 1},
                       patience, {}));
    const auto told = said(c);
    ASSERT_FALSE(told);
    EXPECT_TRUE(told.error().is(errc::corrupt)) << told.error().message();
  }
  // Another version, a relative path, no tags, truncated at every byte.
  bytes later = encode(empty_request{});
  later[0] = std::byte{9};
  const error version = refused(static_cast<std::uint16_t>(kind::status), later);
  EXPECT_TRUE(version.is(errc::not_supported));
  EXPECT_EQ(version.value, 9u);
  EXPECT_EQ(version.limit, protocol_version);
  snapshot_request r = save();
  r.path = "here.smi";
  refused(static_cast<std::uint16_t>(kind::snapshot), encode(r));
  r = save();
  r.tags.clear();
  refused(static_cast<std::uint16_t>(kind::snapshot), encode(r));
  const bytes good = encode(suspend_request{"weights", backing_store::discard, "/tmp"});
  for (std::size_t n = 0; n < good.size(); ++n) {
    refused(static_cast<std::uint16_t>(kind::suspend), bytes_view(good).first(n));
  }
  EXPECT_EQ(seen(), words{});
  EXPECT_TRUE(ask().status());
  EXPECT_TRUE(memory_is_whole());
}

TEST_F(connections, a_stale_socket_is_replaced_and_a_live_one_is_not) {
  // A name of a socket has 107 bytes at most, which a folder for tests can be longer than.
  char folder[] = "/tmp/stillmap-control-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/socket";
  {
    auto one = server::create(dev(), path);
    ASSERT_TRUE(one) << one.error().message();
    EXPECT_EQ(one->address(), path);
    EXPECT_TRUE(client(path).status());
    const auto two = server::create(dev(), path);
    ASSERT_FALSE(two);
    EXPECT_TRUE(two.error().is(errc::busy));
    EXPECT_TRUE(client(path).status());
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  // A socket of a dead process: bound, without a listener.
  {
    const owned_fd dead(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    path.copy(name.sun_path, sizeof name.sun_path - 1);
    ASSERT_EQ(::bind(dead.get(), reinterpret_cast<const sockaddr *>(&name), sizeof name), 0);
  }
  EXPECT_TRUE(server::create(dev(), path));
  // Anything but a socket is not removed.
  std::filesystem::create_directory(path);
  EXPECT_FALSE(server::create(dev(), path));
  EXPECT_TRUE(std::filesystem::is_directory(path));
  std::filesystem::remove(path);
  std::ofstream(path) << "notes";
  const auto in_use = server::create(dev(), path);
  ASSERT_FALSE(in_use);
  EXPECT_TRUE(in_use.error().is(errc::busy)) << in_use.error().message();
  EXPECT_EQ(std::filesystem::file_size(path), 5u);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace stillmap::control::testing
