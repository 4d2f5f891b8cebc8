// Who is accepted: strangers of every kind come before the peer, and do not end the wait for it.
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/handoff/internal/wire.h"
#include "tests/support/buffer_test.h"
#include "tests/support/unique_name.h"

namespace stillmap::handoff::testing {
namespace {

using namespace std::chrono_literals;
using stillmap::testing::unique_name;

class handoff_listener : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = listener::create(where_);
    ASSERT_TRUE(made) << made.error().message();
    at_.emplace(std::move(*made));
  }
  connection connected() const {
    auto c = connection::connect(where_, 30s);
    if (!c) throw std::runtime_error(c.error().message());
    return std::move(*c);
  }
  static void say(connection &c, std::uint16_t what, std::span<const std::byte> body) {
    const status sent = c.send(what, body, {}, 30s, {});
    EXPECT_TRUE(sent) << sent.error().message();
  }
  static void say_hello(connection &c) {
    say(c, static_cast<std::uint16_t>(kind::hello), encode(hello{role::sender, {}, page_}));
  }
  // The hello of the peer that was accepted, by the page size in it.
  static std::uint64_t page_of(connection &c) {
    const auto m = c.receive(64, 30s, {});
    if (!m) return 0;
    const auto h = decode_hello(m->body);
    return h ? h->page_bytes : 0;
  }

  static constexpr std::uint64_t page_ = 4711;
  const std::string where_ = unique_name("@stillmap-listener");
  std::optional<listener> at_;
};

// Regression: `stillmap task list` was accepted as the sender, and ended the receiver.
TEST_F(handoff_listener, goes_on_after_strangers) {
  { const connection gone = connected(); }
  connection silent = connected(), control = connected(), other = connected();
  constexpr std::uint16_t status_request = 0x100;
  say(control, status_request, {});
  const char http[] = "GET / HTTP/1.1\r\n\r\n";
  ASSERT_GT(::send(other.fd(), http, sizeof http, MSG_NOSIGNAL), 0);
  connection sender = connected();
  say_hello(sender);
  auto accepted = at_->accept(30s);
  ASSERT_TRUE(accepted) << accepted.error().message();
  EXPECT_EQ(page_of(*accepted), page_);
}

}  // namespace
}  // namespace stillmap::handoff::testing
