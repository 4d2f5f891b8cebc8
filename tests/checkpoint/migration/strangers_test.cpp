// A destination that strangers connect to: sockets that say nothing, or too little, keep no source out.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "stillmap/checkpoint/migration/internal/openssl.h"
#include "stillmap/checkpoint/migration/internal/wire.h"
#include "tests/checkpoint/migration/endpoints.h"
#include "tests/support/buffer_test.h"

namespace stillmap::migration::testing {
namespace {

using namespace std::chrono_literals;

class strangers : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    site_.emplace();
    auto made = receiver::create(dev(), at_destination(*site_), destination_options(*site_));
    ASSERT_TRUE(made) << made.error().message();
    at_.emplace(std::move(*made));
  }
  void TearDown() override {
    at_.reset();
    buffer_test::TearDown();
  }

  // A connection from an address of this machine.
  owned_fd connect_from(const char *from) const {
    const std::string address = at_->address();
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = ::inet_addr(from);
    owned_fd s(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(s.get(), reinterpret_cast<sockaddr *>(&name), sizeof name), 0) << from;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    name.sin_port =
        htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    EXPECT_EQ(::connect(s.get(), reinterpret_cast<sockaddr *>(&name), sizeof name), 0) << from;
    return s;
  }
  void connect_many(const char *from) {
    for (int i = 0; i < 200; ++i) idle_.push_back(connect_from(from));
  }
  // A source asks, so all earlier connections have been accepted.
  void ask() const {
    const auto c = to_destination(*site_)->connect(30s);
    ASSERT_TRUE(c) << c.error().message();
    const status shaken = (*c)->handshake(30s);
    ASSERT_TRUE(shaken) << shaken.error().message();
    ASSERT_TRUE(send(**c, kind::query, encode(outcome_query{{}, {}, 2}), 30s));
    const auto unknown = migration::receive(**c, kind::query_result, 0, 30s);
    ASSERT_FALSE(unknown);
    EXPECT_NE(unknown.error().message().find("do not list the transfer"), std::string::npos)
        << unknown.error().message();
  }
  static bool is_open(const owned_fd &s) {
    std::array<char, 4096> some;
    for (;;) {
      const ssize_t n = ::recv(s.get(), some.data(), some.size(), MSG_DONTWAIT);
      if (n <= 0) return n < 0 && errno == EAGAIN;
    }
  }
  // The first message of a TLS client.
  static std::string client_hello() {
    const owned_context context(SSL_CTX_new(TLS_client_method()));
    const owned_ssl client(SSL_new(context.get()));
    BIO *const out = BIO_new(BIO_s_mem());
    SSL_set_bio(client.get(), BIO_new(BIO_s_mem()), out);
    SSL_set_connect_state(client.get());
    (void)SSL_do_handshake(client.get());
    char *data = nullptr;
    const long bytes = BIO_get_mem_data(out, &data);
    return {data, static_cast<std::size_t>(bytes)};
  }
  // Has been sent, and the destination has replied.
  void say_hello(const owned_fd &s) const {
    const std::string hello = client_hello();
    ASSERT_FALSE(hello.empty());
    ASSERT_EQ(::send(s.get(), hello.data(), hello.size(), 0), static_cast<ssize_t>(hello.size()));
    char first = 0;
    ASSERT_EQ(::recv(s.get(), &first, 1, 0), 1);
  }

  std::optional<test_site> site_;
  std::optional<receiver> at_;
  std::vector<owned_fd> idle_;
};

// Regression: 96 connections that said nothing kept every source out.
TEST_F(strangers, that_say_nothing_keep_no_source_out) {
  connect_many("127.0.0.1");
  ask();
}

// Regression: the oldest connection had to go, and that was a source's whose handshake took a moment.
TEST_F(strangers, that_say_nothing_go_before_a_source_that_has_said_hello) {
  const owned_fd source = connect_from("127.0.0.1");
  say_hello(source);
  connect_many("127.0.0.1");
  ask();
  EXPECT_TRUE(is_open(source));
}

TEST_F(strangers, of_one_address_replace_each_other) {
  const owned_fd source = connect_from("127.0.0.2");
  connect_many("127.0.0.1");
  ask();
  EXPECT_TRUE(is_open(source));
  // Those that have said hello, too.
  for (int i = 0; i < 40; ++i) {
    idle_.push_back(connect_from("127.0.0.3"));
    say_hello(idle_.back());
  }
  ask();
  EXPECT_TRUE(is_open(source));
}

}  // namespace
}  // namespace stillmap::migration::testing
