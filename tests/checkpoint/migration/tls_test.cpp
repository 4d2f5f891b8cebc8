// TLS channels: addresses, and what an end observes when its peer shuts down.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <future>
#include <thread>

#include "tests/checkpoint/migration/endpoints.h"
#include "tests/support/no_descriptors.h"

namespace stillmap::migration::testing {
namespace {

struct both_ends {
  std::unique_ptr<acceptor> at;
  std::unique_ptr<transport> to;
  std::unique_ptr<channel> here, there;

  explicit both_ends(const test_site &m) : at(at_destination(m)), to(to_destination(m)) {
    here = std::move(*to->connect(std::chrono::milliseconds(5000)));
    there = std::move(*at->accept(std::chrono::milliseconds(5000)));
    auto opened = std::async(std::launch::async,
                             [&] { return there->handshake(std::chrono::milliseconds(5000)); });
    EXPECT_TRUE(here->handshake(std::chrono::milliseconds(5000)));
    EXPECT_TRUE(opened.get());
  }
};

// A receiver that shuts down reads what has arrived and closes. A sender that waits for buffer space
// fails at once, not at its timeout.
TEST(migration_tls, WhoWaitsForRoomHearsOfTheEnd) {
  const test_site m;
  both_ends c(m);
  const std::vector<std::byte> much(64 << 20);
  auto sent = std::async(std::launch::async,
                         [&] { return c.here->send(much, std::chrono::milliseconds(4000)); });
  // Fills the socket's buffers.
  std::vector<std::byte> some(16 << 10);
  ASSERT_TRUE(c.there->receive(some, std::chrono::milliseconds(5000)));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  c.there->shutdown();
  while (c.there->receive(some, std::chrono::milliseconds(5000))) {
  }
  c.there.reset();
  const status s = sent.get();
  ASSERT_FALSE(s);
  EXPECT_FALSE(s.error().is(errc::busy)) << s.error().message();
}

TEST(migration_tls, a_silent_peer_is_a_timeout) {
  const test_site m;
  both_ends c(m);
  std::vector<std::byte> some(1);
  const status s = c.here->receive(some, std::chrono::milliseconds(50));
  ASSERT_FALSE(s);
  EXPECT_TRUE(s.error().is(errc::busy)) << s.error().message();
}

// Data that was sent before the shutdown arrives.
TEST(migration_tls, WhatWasSentBeforeTheEndArrives) {
  const test_site m;
  for (int i = 0; i < 20; ++i) {
    both_ends c(m);
    const std::vector<std::byte> words(100 << 10, std::byte{7});
    ASSERT_TRUE(c.there->send(words, std::chrono::milliseconds(5000)));
    c.there->shutdown();
    c.there.reset();
    std::vector<std::byte> heard(words.size());
    const status s = c.here->receive(heard, std::chrono::milliseconds(5000));
    ASSERT_TRUE(s) << s.error().message();
    EXPECT_EQ(heard, words);
  }
}

// Regression: an end that refused the other's certificate closed the connection with data unread. The
// other end then read "connection reset", not why. Its handshake has succeeded by then.
TEST(migration_tls, who_is_refused_learns_why) {
  const test_site m;
  const auto at = at_destination(m);
  const auto to = create_tls_transport(at->address(), [&] {
    credentials c = m.of("third");
    const auto unknown = make_self_signed("localhost");
    c.certificate = unknown->certificate;
    c.key = unknown->key;
    return c;
  }());
  ASSERT_TRUE(to) << to.error().message();
  const std::chrono::milliseconds timeout(30'000);
  auto here = std::move(*(*to)->connect(timeout));
  std::promise<void> refused;
  auto other_end = std::async(std::launch::async, [&] {
    auto there = std::move(*at->accept(timeout));
    EXPECT_FALSE(there->handshake(timeout));
    refused.set_value();
    there->close_gracefully(timeout);
  });
  ASSERT_TRUE(here->handshake(timeout));
  refused.get_future().wait();
  std::vector<std::byte> request(1000), answer(1);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(here->send(request, timeout));
  const status s = here->receive(answer, timeout);
  ASSERT_FALSE(s);
  EXPECT_NE(s.error().message().find("unknown ca"), std::string::npos) << s.error().message();
  here.reset();
  other_end.wait();
}

TEST(migration_tls, an_acceptor_without_a_host_listens_on_all_addresses) {
  const test_site m;
  const auto at = create_tls_acceptor(":0", m.of("destination"));
  ASSERT_TRUE(at) << at.error().message();
  const std::string address = (*at)->address();
  EXPECT_TRUE(address.starts_with("0.0.0.0:") || address.starts_with("[::]:")) << address;
}

TEST(migration_tls, credentials_must_be_certificates_and_a_key) {
  const test_site m;
  const credentials good = m.of("destination");
  const auto refused = [](const credentials &c) {
    const auto at = create_tls_acceptor("127.0.0.1:0", c);
    return !at && at.error().is(errc::invalid_argument);
  };
  ASSERT_TRUE(create_tls_acceptor("127.0.0.1:0", good));
  for (std::string credentials::*part :
       {&credentials::certificate, &credentials::key, &credentials::authorities}) {
    credentials bad = good;
    bad.*part = "no PEM";
    EXPECT_TRUE(refused(bad));
  }
  credentials mixed = good;
  mixed.key = m.of("source").key;
  EXPECT_TRUE(refused(mixed)) << "another certificate's key";
}

// Regression: without a name, every certificate of the authority was trusted. It is the host's now.
TEST(migration_tls, a_certificate_of_an_authority_must_contain_the_name) {
  const test_site m;
  auto made = make_self_signed("localhost");
  ASSERT_TRUE(made) << made.error().message();
  made->fingerprints = m.of("destination").fingerprints;
  const auto at = create_tls_acceptor("127.0.0.1:0", *made);
  ASSERT_TRUE(at) << at.error().message();
  const std::string port = (*at)->address().substr((*at)->address().rfind(':'));
  credentials source = m.of("source");
  source.fingerprints.clear();
  source.authorities = made->certificate;
  struct {
    const char *host, *name;
    bool trusted;
  } const cases[] = {{"127.0.0.1", "", false},           {"localhost", "", true},
                     {"127.0.0.1", "*", true},           {"127.0.0.1", "localhost", true},
                     {"localhost", "an.example", false}, {"127.0.0.1", "127.0.0.1", false}};
  for (const auto &[host, name, trusted] : cases) {
    SCOPED_TRACE(host);
    source.name = name;
    const auto to = create_tls_transport(host + port, source);
    ASSERT_TRUE(to) << name << ": " << to.error().message();
    const auto here = (*to)->connect(std::chrono::milliseconds(5000));
    auto there = (*at)->accept(std::chrono::milliseconds(5000));
    ASSERT_TRUE(here && there);
    auto opened = std::async(std::launch::async,
                             [&] { return (*there)->handshake(std::chrono::milliseconds(5000)); });
    const status s = (*here)->handshake(std::chrono::milliseconds(5000));
    (void)opened.get();
    EXPECT_EQ(s.has_value(), trusted) << name << ": " << (s ? "trusted" : s.error().message());
    EXPECT_TRUE(trusted || s || s.error().is(errc::not_supported)) << s.error().message();
  }
}

TEST(migration_tls, a_destination_with_an_authority_needs_the_name_of_its_sources) {
  const test_site m;
  credentials c = m.of("destination");
  c.authorities = m.of("source").certificate;
  const auto unnamed = create_tls_acceptor("127.0.0.1:0", c);
  ASSERT_FALSE(unnamed);
  EXPECT_TRUE(unnamed.error().is(errc::invalid_argument)) << unnamed.error().message();
  for (const char *const name : {"*", "source.example"}) {
    c.name = name;
    EXPECT_TRUE(create_tls_acceptor("127.0.0.1:0", c)) << name;
  }
}

TEST(migration_tls, accepting_without_descriptors_fails_at_once) {
  const test_site m;
  const auto at = at_destination(m);
  const auto to = to_destination(m);
  auto waits = std::async(std::launch::async, [&] { return to->connect(std::chrono::seconds(5)); });
  ASSERT_TRUE(waits.get()) << "the connection is in the backlog";
  const stillmap::testing::no_descriptors none;
  const auto accepted = at->accept(std::chrono::seconds(5));
  ASSERT_FALSE(accepted);
  EXPECT_EQ(accepted.error().code, std::errc::too_many_files_open) << accepted.error().message();
}

// The refusal arrives after connect() has returned: the system reports it when the socket becomes
// writable.
TEST(migration_tls, a_port_that_nobody_listens_on_refuses_the_connection) {
  const owned_fd bound(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));  // but does not listen
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof name;
  ASSERT_EQ(::bind(bound.get(), reinterpret_cast<sockaddr *>(&name), bytes), 0);
  ASSERT_EQ(::getsockname(bound.get(), reinterpret_cast<sockaddr *>(&name), &bytes), 0);
  const test_site m;
  const std::string address = "127.0.0.1:" + std::to_string(ntohs(name.sin_port));
  const auto to = create_tls_transport(address, m.of("source"));
  ASSERT_TRUE(to) << to.error().message();
  const auto c = (*to)->connect(std::chrono::milliseconds(5000));
  ASSERT_FALSE(c);
  EXPECT_EQ(c.error().code, std::error_code(ECONNREFUSED, std::system_category()));
  EXPECT_EQ(c.error().detail().subject, address);
}

}  // namespace
}  // namespace stillmap::migration::testing
