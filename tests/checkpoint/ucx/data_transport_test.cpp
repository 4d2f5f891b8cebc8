// The UCX channel by itself, over TCP and over shared memory: bytes, silence, a peer that goes, strangers.
#include <gtest/gtest.h>

#if __has_include("stillmap/checkpoint/ucx/data_transport.h") && __has_include(<ucp/api/ucp.h>)

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "stillmap/checkpoint/ucx/data_transport.h"
#include "stillmap/vmm/base/owned_fd.h"

namespace stillmap::ucx {
namespace {

using namespace std::chrono_literals;
using migration::acceptor;
using migration::transport;

struct channel_pair {
  std::unique_ptr<migration::channel> source, destination;
};

class ucx_channel : public ::testing::TestWithParam<const char *> {
 protected:
  void SetUp() override {
    auto at = create_data_acceptor("127.0.0.1:0", {GetParam()});
    ASSERT_TRUE(at) << at.error().message();
    at_ = std::move(*at);
    auto connector = create_data_connector({GetParam()});
    ASSERT_TRUE(connector) << connector.error().message();
    auto to = (*connector)->create_transport(at_->address());
    ASSERT_TRUE(to) << to.error().message();
    to_ = std::move(*to);
  }
  // Both handshakes run at once.
  channel_pair connect() {
    channel_pair out;
    auto connecting = std::async(std::launch::async, [&] {
      auto c = to_->connect(10s);
      EXPECT_TRUE(c) << c.error().message();
      if (!c) return;
      const status s = (*c)->handshake(10s);
      EXPECT_TRUE(s) << s.error().message();
      out.source = std::move(*c);
    });
    auto c = at_->accept(10s);
    EXPECT_TRUE(c) << c.error().message();
    if (c) {
      const status s = (*c)->handshake(10s);
      EXPECT_TRUE(s) << s.error().message();
      out.destination = std::move(*c);
    }
    connecting.get();
    return out;
  }
  static std::vector<std::byte> sample(std::size_t bytes) {
    std::vector<std::byte> out(bytes);
    std::uint32_t next = 1;
    for (std::byte &b : out) b = static_cast<std::byte>((next = next * 1664525 + 1013904223) >> 24);
    return out;
  }

  std::unique_ptr<acceptor> at_;
  std::unique_ptr<transport> to_;
};
INSTANTIATE_TEST_SUITE_P(over, ucx_channel, ::testing::Values("tcp", "shm"),
                         [](const auto &param) { return std::string(param.param); });

TEST_P(ucx_channel, carries_bytes_in_pieces_of_any_size_both_ways) {
  const auto all = sample(9'000'001);
  channel_pair p = connect();
  ASSERT_TRUE(p.source && p.destination);
  EXPECT_FALSE(p.source->encrypted());
  const auto pass = [&](migration::channel &from, migration::channel &to) {
    auto sending = std::async(std::launch::async, [&] {
      for (std::size_t n = 0, size = 1; n < all.size(); n += size, size = size * 7 + 1) {
        size = std::min(size, all.size() - n);
        EXPECT_TRUE(from.send({all.data() + n, size}, 10s));
      }
    });
    std::vector<std::byte> got(all.size());
    for (std::size_t n = 0, size = 40; n < got.size(); n += size, size = size * 3) {
      size = std::min(size, got.size() - n);
      const status s = to.receive({got.data() + n, size}, 10s);
      ASSERT_TRUE(s) << s.error().message();
    }
    sending.get();
    EXPECT_TRUE(got == all);
  };
  pass(*p.source, *p.destination);
  pass(*p.destination, *p.source);
  // Both at once: an event that one thread consumes may be the other's.
  auto back = std::async(std::launch::async, [&] {
    std::vector<std::byte> got(64);
    for (int i = 0; i < 2000; ++i) ASSERT_TRUE(p.source->receive(got, 10s));
  });
  auto forth = std::async(std::launch::async, [&] {
    std::vector<std::byte> got(64);
    for (int i = 0; i < 2000; ++i) ASSERT_TRUE(p.destination->receive(got, 10s));
  });
  auto other = std::async(std::launch::async, [&] {
    for (int i = 0; i < 2000; ++i) ASSERT_TRUE(p.destination->send({all.data(), 64}, 10s));
  });
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(p.source->send({all.data(), 64}, 10s));
  back.get();
  forth.get();
  other.get();
}

TEST_P(ucx_channel, a_silent_peer_is_an_error_after_the_timeout) {
  channel_pair p = connect();
  ASSERT_TRUE(p.source && p.destination);
  std::vector<std::byte> got(40);
  EXPECT_TRUE(p.source->send({sample(39).data(), 39}, 10s)) << "half of a message";
  const status s = p.destination->receive(got, 200ms);
  ASSERT_FALSE(s);
  EXPECT_TRUE(s.error().is(errc::busy)) << s.error().message();
  // The channel is closed, and the peer learns it.
  EXPECT_FALSE(p.destination->receive(got, 200ms));
  EXPECT_FALSE(p.source->receive(got, 10s));
}

// Where the endpoint does not watch its peer, the receiver waits for ever.
TEST_P(ucx_channel, a_peer_that_goes_is_an_error_at_once) {
  for (const bool destructs : {false, true}) {
    channel_pair p = connect();
    ASSERT_TRUE(p.source && p.destination);
    const auto began = std::chrono::steady_clock::now();
    auto leaving = std::async(std::launch::async, [&] {
      std::this_thread::sleep_for(100ms);
      destructs ? p.source.reset() : p.source->shutdown();
    });
    std::vector<std::byte> got(40);
    const status s = p.destination->receive(got, 30s);
    leaving.get();
    ASSERT_FALSE(s);
    EXPECT_EQ(s.error().code.category(), std::system_category()) << s.error().message();
    EXPECT_LT(std::chrono::steady_clock::now() - began, 10s);
  }
}

TEST_P(ucx_channel, shutdown_ends_a_call_of_another_thread) {
  channel_pair p = connect();
  ASSERT_TRUE(p.source && p.destination);
  auto stopping = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(100ms);
    p.destination->shutdown();
    at_->shutdown();
  });
  std::vector<std::byte> got(40);
  EXPECT_FALSE(p.destination->receive(got, 30s));
  const auto c = at_->accept(30s);
  ASSERT_FALSE(c);
  EXPECT_EQ(c.error().code, std::errc::operation_canceled) << c.error().message();
  stopping.get();
}

TEST_P(ucx_channel, nobody_listens) {
  const std::string address = at_->address();
  at_.reset();
  const auto c = to_->connect(10s);
  if (!c) return;
  const status s = (*c)->handshake(10s);
  ASSERT_FALSE(s);
  EXPECT_EQ(s.error().code.category(), std::system_category()) << s.error().message();
}

// A stranger's first bytes, on a socket of its own: what the destination says of them.
class ucx_stranger {
 public:
  explicit ucx_stranger(const std::string &address)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    name.sin_port =
        htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    EXPECT_EQ(::connect(socket_.get(), reinterpret_cast<sockaddr *>(&name), sizeof name), 0);
  }
  void say(std::string_view bytes) const {
    (void)!::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

 private:
  owned_fd socket_;
};

TEST_P(ucx_channel, garbage_and_other_protocols_are_refused) {
  using namespace std::string_view_literals;
  const auto handshake_after = [&](std::string_view said) {
    const ucx_stranger s(at_->address());
    s.say(said);
    auto c = at_->accept(10s);
    EXPECT_TRUE(c) << c.error().message();
    return c ? (*c)->handshake(300ms) : status();
  };
  const auto hello = "stillmap-ucx\0\0\0\1"sv;
  EXPECT_TRUE(handshake_after("").error().is(errc::busy));
  EXPECT_TRUE(handshake_after(hello.substr(0, 15)).error().is(errc::busy)) << "half a greeting";
  EXPECT_TRUE(handshake_after("GET / HTTP/1.1\r\n").error().is(errc::corrupt));
  const status newer = handshake_after("stillmap-ucx\0\0\0\2"sv);
  ASSERT_FALSE(newer);
  EXPECT_TRUE(newer.error().is(errc::not_supported)) << newer.error().message();
  EXPECT_EQ(newer.error().value, 2u);
  EXPECT_EQ(newer.error().limit, 1u);
  // Addresses of workers: none, too long, half of one.
  const status none = handshake_after(std::string(hello) + std::string(4, '\0'));
  EXPECT_TRUE(none.error().is(errc::corrupt)) << none.error().message();
  const status huge = handshake_after(std::string(hello) + "\x7f\xff\xff\xff");
  EXPECT_TRUE(huge.error().is(errc::corrupt)) << huge.error().message();
  EXPECT_EQ(huge.error().value, 0x7fff'ffffu);
  EXPECT_EQ(huge.error().limit, 16384u);
  EXPECT_TRUE(handshake_after(std::string(hello) + "\0\0\0\x40...").error().is(errc::busy));
  const channel_pair p = connect();
  EXPECT_TRUE(p.source && p.destination);
}

TEST(ucx_options, wrong_ones_are_errors) {
  const auto connector = create_data_connector();
  ASSERT_TRUE(connector) << connector.error().message();
  for (const char *const address : {"", "nowhere", "127.0.0.1:"}) {
    EXPECT_TRUE((*connector)->create_transport(address).error().is(errc::invalid_argument))
        << address;
    EXPECT_TRUE(create_data_acceptor(address).error().is(errc::invalid_argument)) << address;
  }
  const auto at = create_data_acceptor("127.0.0.1:0", {"no_such_transport"});
  ASSERT_FALSE(at);
  EXPECT_TRUE(create_data_connector({"no_such_transport"}).error().is(errc::not_supported));
  const auto foreign = create_data_acceptor("192.0.2.250:0", {"tcp"});
  ASSERT_FALSE(foreign);
  EXPECT_NE(foreign.error().message().find("192.0.2.250:0"), std::string::npos)
      << foreign.error().message();
}

}  // namespace
}  // namespace stillmap::ucx

#else

TEST(ucx, needs_ucx) {
  GTEST_SKIP() << "no UCX (Debian: libucx-dev)";
}

#endif
