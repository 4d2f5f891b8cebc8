// Messages over a socket: in pieces, with descriptors, cut short, and not of this protocol.
#include "stillmap/checkpoint/base/socket_channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "stillmap/checkpoint/base/socket_listener.h"
#include "tests/support/buffer_test.h"
#include "tests/support/no_descriptors.h"
#include "tests/support/no_stdin.h"
#include "tests/support/unique_name.h"

namespace stillmap::checkpoint::testing {
namespace {

using namespace std::chrono_literals;
using stillmap::testing::fails_with;
using stillmap::testing::outcome;

constexpr const char *sending = "socket_channel::send", *receiving = "socket_channel::receive",
                     *accepting = "socket_listener::accept";
constexpr std::uint32_t magic = 0x4f484d53;
constexpr std::size_t header_bytes = 16;

class socket_channel_test : public ::testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    raw_ = owned_fd(fds[0]);
    auto adopted = socket_channel::adopt(owned_fd(fds[1]));
    ASSERT_TRUE(adopted);
    ours_.emplace(std::move(*adopted));
  }

  result<socket_message> receive(std::size_t limit = 1 << 20) {
    return ours_->receive(limit, 50ms, {});
  }
  void write_raw(const void *data, std::size_t bytes) {
    ASSERT_EQ(::write(raw_.get(), data, bytes), static_cast<ssize_t>(bytes));
  }
  void write_header(std::uint16_t version, std::uint32_t bytes, std::uint32_t fds) {
    const std::uint32_t head[] = {magic, version | 9U << 16, bytes, fds};
    write_raw(head, sizeof head);
  }

  owned_fd raw_;
  std::optional<socket_channel> ours_;
};

// One read of a raw socket: the bytes, and how many descriptors came with them.
struct raw_read {
  ssize_t bytes = 0;
  std::vector<owned_fd> fds;
};
raw_read read_raw(int from, void *to, std::size_t bytes) {
  raw_read out;
  alignas(cmsghdr) char room[CMSG_SPACE(8 * sizeof(int))] = {};
  iovec part{to, bytes};
  msghdr m{};
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  m.msg_control = room;
  m.msg_controllen = sizeof room;
  out.bytes = ::recvmsg(from, &m, 0);
  for (cmsghdr *c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c)) {
    for (std::size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= c->cmsg_len; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      out.fds.emplace_back(fd);
    }
  }
  return out;
}

// The socket holds less than the message, so it is sent in pieces. Only the first has the descriptors.
TEST_F(socket_channel_test, a_message_in_pieces_has_its_descriptors_once) {
  const int small = 4096;
  ASSERT_EQ(::setsockopt(ours_->fd(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
  std::vector<std::byte> body(1 << 20);
  for (std::size_t i = 0; i < body.size(); ++i) body[i] = static_cast<std::byte>(i * 31 % 251);
  const int fds[] = {raw_.get(), ours_->fd()};
  status sent = make_error(errc::busy, "not yet");
  std::thread sender([&] { sent = ours_->send(9, body, fds, 10s, {}); });
  std::vector<std::byte> got(header_bytes + body.size());
  std::size_t bytes = 0, descriptors = 0, reads = 0;
  while (bytes < got.size()) {
    const raw_read r = read_raw(raw_.get(), got.data() + bytes, got.size() - bytes);
    ASSERT_GT(r.bytes, 0);
    bytes += static_cast<std::size_t>(r.bytes);
    descriptors += r.fds.size();
    ++reads;
  }
  sender.join();
  EXPECT_TRUE(sent) << sent.error().message();
  EXPECT_GT(reads, 1u);
  EXPECT_EQ(descriptors, 2u);
  const std::uint32_t head[] = {magic, 1U | 9U << 16, 1 << 20, 2};
  EXPECT_EQ(std::memcmp(got.data(), head, sizeof head), 0);
  EXPECT_EQ(std::memcmp(got.data() + header_bytes, body.data(), body.size()), 0);
}

TEST_F(socket_channel_test, a_message_without_descriptors_has_no_control_data) {
  ASSERT_TRUE(ours_->send(9, {}, {}, 1s, {}));
  char room[64] = {};
  char head[header_bytes];
  iovec part{head, sizeof head};
  msghdr m{};
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  m.msg_control = room;
  m.msg_controllen = sizeof room;
  EXPECT_EQ(::recvmsg(raw_.get(), &m, 0), static_cast<ssize_t>(sizeof head));
  EXPECT_EQ(m.msg_controllen, 0u);
}

TEST_F(socket_channel_test, a_message_that_comes_byte_by_byte_is_whole) {
  std::thread peer([&] {
    const std::uint32_t head[] = {magic, 1U | 9U << 16, 3, 0};
    const auto *const bytes = reinterpret_cast<const char *>(head);
    for (std::size_t i = 0; i < sizeof head; ++i) write_raw(bytes + i, 1);
    for (const char c : {'a', 'b', 'c'}) write_raw(&c, 1);
  });
  const auto got = ours_->receive(3, 10s, {});
  peer.join();
  ASSERT_TRUE(got) << got.error().message();
  EXPECT_EQ(got->kind, 9);
  ASSERT_EQ(got->body.size(), 3u);
  EXPECT_EQ(std::memcmp(got->body.data(), "abc", 3), 0);
  EXPECT_TRUE(got->fds.empty());
}

TEST_F(socket_channel_test, a_body_of_several_parts_arrives_whole) {
  auto other = socket_channel::adopt(std::move(raw_));
  ASSERT_TRUE(other);
  std::vector<std::byte> body((5 << 20) / 2);
  for (std::size_t i = 0; i < body.size(); ++i) body[i] = static_cast<std::byte>(i * 31 % 251);
  std::thread sender([&] { EXPECT_TRUE(other->send(3, body, {}, 10s, {})); });
  const auto got = ours_->receive(body.size(), 10s, {});
  sender.join();
  ASSERT_TRUE(got) << got.error().message();
  EXPECT_EQ(got->body, body);
}

TEST_F(socket_channel_test, a_body_of_exactly_the_limit_is_received) {
  write_header(1, 4, 0);
  write_raw("four", 4);
  EXPECT_TRUE(receive(4));
  write_header(1, 5, 0);
  EXPECT_TRUE(fails_with(outcome(receive(4)), errc::corrupt, receiving, 5, 4));
}

TEST_F(socket_channel_test, what_is_not_of_this_protocol_is_refused) {
  write_raw("not our protocol", 16);
  EXPECT_TRUE(fails_with(outcome(receive()), errc::corrupt, receiving, 0, 0));
  write_header(2, 0, 0);
  EXPECT_TRUE(fails_with(outcome(receive()), errc::corrupt, receiving, 2, 1));
  write_header(1, 0, 1);  // announces a descriptor, and sends none
  EXPECT_TRUE(fails_with(outcome(receive()), errc::corrupt, receiving, 0, 1));
}

// Descriptors that come with the body, or unannounced, are refused and closed.
TEST_F(socket_channel_test, descriptors_out_of_place_are_refused_and_closed) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const owned_fd read_end(ends[0]);
  {
    const owned_fd write_end(ends[1]);
    const int fds[] = {write_end.get()};
    auto other = socket_channel::adopt(std::move(raw_));
    ASSERT_TRUE(other);
    // The second message is the body of the first.
    const std::uint32_t head[] = {magic, 1U | 9U << 16, header_bytes, 0};
    ASSERT_EQ(::write(other->fd(), head, sizeof head), static_cast<ssize_t>(sizeof head));
    ASSERT_TRUE(other->send(9, {}, fds, 1s, {}));
    EXPECT_TRUE(fails_with(outcome(receive()), errc::corrupt, receiving, 0, 0));
  }
  char c;
  EXPECT_EQ(::read(read_end.get(), &c, 1), 0) << "somebody still holds the other end";
}

TEST_F(socket_channel_test, received_descriptors_are_the_senders_and_are_closed_with_the_message) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const owned_fd read_end(ends[0]);
  auto other = socket_channel::adopt(std::move(raw_));
  ASSERT_TRUE(other);
  {
    const owned_fd write_end(ends[1]);
    const int fds[] = {write_end.get(), read_end.get()};
    ASSERT_TRUE(other->send(9, {}, fds, 1s, {}));
  }
  char c = 0;
  {
    const auto got = receive();
    ASSERT_TRUE(got) << got.error().message();
    ASSERT_EQ(got->fds.size(), 2u);
    EXPECT_EQ(::write(got->fds[0].get(), "x", 1), 1);
    EXPECT_EQ(::read(read_end.get(), &c, 1), 1);
    EXPECT_EQ(c, 'x');
    EXPECT_NE(::fcntl(got->fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_EQ(::read(read_end.get(), &c, 1), 0);
}

// Regression: the peer was blamed for descriptors that there was no room for here.
TEST_F(socket_channel_test, without_descriptors_the_peer_is_not_blamed) {
  auto peer = socket_channel::adopt(owned_fd(::dup(raw_.get())));
  ASSERT_TRUE(peer);
  const std::vector<int> fds(5, STDERR_FILENO);
  ASSERT_TRUE(peer->send(9, {}, fds, 1s, {}));
  {
    const stillmap::testing::no_descriptors none;
    const auto m = receive();
    ASSERT_FALSE(m);
    EXPECT_EQ(m.error().code, std::errc::too_many_files_open) << m.error().message();
  }
}

// Regression: a sender failed while others of its user had many descriptors on their way.
TEST_F(socket_channel_test, descriptors_on_their_way_are_waited_for) {
  auto peer = socket_channel::adopt(owned_fd(::dup(raw_.get())));
  ASSERT_TRUE(peer);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{200, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const std::vector<int> fds(100, STDERR_FILENO);
  constexpr int messages = 8;
  std::atomic<int> sent{0}, failed{0};
  std::atomic<bool> impossible{false};
  std::thread sends([&] {
    // The limit is not for root: this thread gives that up.
    __user_cap_header_struct head{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2]{};
    if (::syscall(SYS_capset, &head, none) != 0) {
      impossible = true;
      return;
    }
    for (int i = 0; i < messages; ++i) {
      const status s = peer->send(9, {}, fds, 20s, {});
      ++(s ? sent : failed);
      EXPECT_TRUE(s) << s.error().message();
    }
    // Nobody takes more.
    const status full = [&] {
      for (;;) {
        if (const status s = peer->send(9, {}, fds, 30ms, {}); !s) return s;
      }
    }();
    EXPECT_EQ(full.error().code.value(), ETOOMANYREFS) << full.error().message();
  });
  std::this_thread::sleep_for(50ms);
  EXPECT_LT(sent, messages) << "the limit does not hold here";
  for (int i = 0; i < messages && !impossible; ++i) {
    const auto m = ours_->receive(0, 20s, {});
    if (!m) ADD_FAILURE() << m.error().message();
    if (!m) break;
    EXPECT_EQ(m->fds.size(), fds.size());
  }
  sends.join();
  EXPECT_EQ(failed, 0);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  if (impossible) GTEST_SKIP() << "a thread cannot give up its capabilities here";
}

TEST_F(socket_channel_test, a_peer_that_closes_or_is_silent_is_an_error) {
  EXPECT_TRUE(fails_with(outcome(receive()), errc::busy, receiving, 50, 0));
  write_header(1, 4, 0);
  write_raw("ab", 2);
  EXPECT_TRUE(
      fails_with(outcome(receive()), errc::busy, receiving, 50, 0));  // the rest does not come
  const auto late = ours_->receive(4, 10s, {}, std::chrono::steady_clock::now());
  EXPECT_TRUE(fails_with(outcome(late), errc::busy, receiving));
  raw_ = owned_fd();
  const auto gone = receive();
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, std::errc::connection_reset);
  const status sent = ours_->send(9, {}, {}, 1s, {});
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code, std::errc::broken_pipe);
}

TEST_F(socket_channel_test, a_peer_that_does_not_read_is_waited_for_until_the_timeout) {
  const std::vector<std::byte> body(64 << 20);
  EXPECT_TRUE(fails_with(outcome(ours_->send(9, body, {}, 30ms, {})), errc::busy, sending, 30, 0));
  std::stop_source stop;
  stop.request_stop();
  EXPECT_TRUE(fails_with(outcome(ours_->send(9, body, {}, 60s, stop.get_token())),
                         errc::operation_canceled, sending));
  EXPECT_TRUE(fails_with(outcome(ours_->receive(1, 60s, stop.get_token())),
                         errc::operation_canceled, receiving));
}

TEST(socket_address, is_a_path_or_an_abstract_name_of_limited_length) {
  const std::size_t most = sizeof(sockaddr_un{}.sun_path) - 1;
  for (const std::string &wrong : {std::string(), std::string("@"), std::string(most + 1, 'a')}) {
    const auto no = socket_channel::connect(wrong);
    ASSERT_FALSE(no);
    EXPECT_TRUE(no.error().is(errc::invalid_argument));
    EXPECT_EQ(no.error().value, wrong.size());
    EXPECT_EQ(no.error().limit, most);
    EXPECT_EQ(no.error().detail().subject, wrong);
    EXPECT_TRUE(fails_with(outcome(socket_listener::create(wrong)), errc::invalid_argument,
                           "socket_listener::create"));
  }
  std::string longest = stillmap::testing::unique_name("@stillmap");
  longest.resize(most, 'x');
  auto at = socket_listener::create(longest);
  ASSERT_TRUE(at) << at.error().message();
  const auto to = socket_channel::connect(longest);
  ASSERT_TRUE(to) << to.error().message();
  const auto from = at->accept(1s);
  ASSERT_TRUE(from) << from.error().message();
  EXPECT_EQ(from->peer().pid, ::getpid());
  EXPECT_EQ(from->peer().uid, ::getuid());
  EXPECT_EQ(from->peer().gid, ::getgid());
}

TEST(socket_address, without_descriptors_is_an_error_at_once) {
  const std::string name = stillmap::testing::unique_name("@stillmap-no-fd");
  auto at = socket_listener::create(name);
  ASSERT_TRUE(at);
  const auto waiting = socket_channel::connect(name);
  ASSERT_TRUE(waiting);
  const stillmap::testing::no_descriptors none;
  const auto accepted = at->accept(5s);
  ASSERT_FALSE(accepted);
  EXPECT_EQ(accepted.error().code, std::errc::too_many_files_open) << accepted.error().message();
  const auto connected = socket_channel::connect(name, 5s);
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code, std::errc::too_many_files_open);
  const auto second = socket_listener::create(name + "-2");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, std::errc::too_many_files_open);
}

TEST(socket_address, of_a_listener_is_in_use_until_it_ends) {
  // The folders of tests have longer names than a socket may have.
  const std::string path = stillmap::testing::unique_name("/tmp/stillmap-connection");
  {
    auto at = socket_listener::create(path);
    ASSERT_TRUE(at) << at.error().message();
    EXPECT_TRUE(
        fails_with(outcome(socket_listener::create(path)), errc::busy, "socket_listener::create"));
    EXPECT_TRUE(fails_with(outcome(at->accept(20ms)), errc::busy, accepting, 20, 0));
    std::stop_source stop;
    stop.request_stop();
    EXPECT_TRUE(fails_with(outcome(at->accept(60s, stop.get_token())), errc::operation_canceled,
                           accepting));
    struct stat found {};
    EXPECT_EQ(::stat(path.c_str(), &found), 0);
  }
  struct stat found {};
  EXPECT_NE(::stat(path.c_str(), &found), 0);
  const auto nobody = socket_channel::connect(path);
  ASSERT_FALSE(nobody);
  EXPECT_EQ(nobody.error().code, std::errc::no_such_file_or_directory);
  EXPECT_EQ(nobody.error().detail().subject, path);
}

TEST(socket_address, of_a_listener_whose_descriptor_is_0_is_removed_too) {
  const std::string path = stillmap::testing::unique_name("/tmp/stillmap-connection-0");
  struct stat found {};
  {
    const stillmap::testing::no_stdin none;
    const auto at = socket_listener::create(path);
    ASSERT_TRUE(at) << at.error().message();
    EXPECT_EQ(at->fd(), 0);
    EXPECT_EQ(::stat(path.c_str(), &found), 0);
  }
  EXPECT_NE(::stat(path.c_str(), &found), 0);
}

TEST(socket_address, is_tried_until_somebody_listens) {
  const std::string name = stillmap::testing::unique_name("@stillmap-late");
  std::optional<result<socket_channel>> to;
  std::thread early([&] { to = socket_channel::connect(name, 30s); });
  std::this_thread::sleep_for(20ms);
  auto at = socket_listener::create(name);
  ASSERT_TRUE(at);
  EXPECT_TRUE(at->accept(30s));
  early.join();
  EXPECT_TRUE(*to) << to->error().message();
  std::stop_source stop;
  stop.request_stop();
  EXPECT_TRUE(
      fails_with(outcome(socket_channel::connect("@stillmap-nobody", 60s, stop.get_token())),
                 errc::operation_canceled, "socket_channel::connect"));
}

}  // namespace
}  // namespace stillmap::checkpoint::testing
