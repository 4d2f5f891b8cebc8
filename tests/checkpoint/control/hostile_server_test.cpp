// A client, and a server that lies in every field of every response, is slow, or ends in the middle. The
// client returns an error, or what the server said, and its texts are safe for a terminal.
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <set>
#include <thread>

#include "stillmap/checkpoint/control/client.h"
#include "stillmap/checkpoint/control/internal/messages.h"
#include "tests/checkpoint/control/memory.h"
#include "tests/checkpoint/handoff/frames.h"

namespace stillmap::control::testing {
namespace {

using namespace std::chrono_literals;
using handoff::testing::end_writing;
using handoff::testing::frame;
using handoff::testing::write_frames;
using handoff::testing::write_with;

// Serves one connection after another; `answers` is called when a request has come.
class lying_server {
 public:
  explicit lying_server(std::function<void(int socket)> answers)
      : answers_(std::move(answers)), listener_(std::move(*handoff::listener::create(where_))) {}
  ~lying_server() {
    over_ = true;
    thread_.join();
  }
  const std::string &address() const { return where_; }

 private:
  void serve() {
    while (!over_) {
      auto c = listener_.accept(20ms);
      if (!c) continue;
      if (!c->receive(max_request_bytes, 10s, {})) continue;
      answers_(c->fd());
    }
  }
  const std::string where_ = new_place();
  const std::function<void(int socket)> answers_;
  handoff::listener listener_;
  std::atomic<bool> over_{false};
  std::thread thread_{[this] { serve(); }};
};

// Regression: each byte began the timeout anew.
TEST(hostile_server, a_status_that_comes_slowly_is_bounded_by_the_timeout) {
  const lying_server at([](int socket) {
    const frame half(static_cast<std::uint16_t>(kind::response), "response");
    try {
      for (std::size_t i = 0; i < half.bytes().size(); ++i) {
        write_with(socket, std::span(half.bytes()).subspan(i, 1), {});
        std::this_thread::sleep_for(60ms);
      }
    } catch (const std::runtime_error &) {  // the client is gone
    }
  });
  client_options options;
  options.timeout = 100ms;
  const auto begun = std::chrono::steady_clock::now();
  const auto s = client(at.address(), options).status();
  ASSERT_FALSE(s);
  EXPECT_TRUE(s.error().is(errc::busy)) << s.error().message();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 600ms);
}

}  // namespace
}  // namespace stillmap::control::testing
