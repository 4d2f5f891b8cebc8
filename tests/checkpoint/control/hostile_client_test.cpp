// A server, and clients that lie in every field of every request, send half of one, say nothing, are
// slow, or disconnect at any moment. The server carries out no malformed request, and serves others.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <thread>

#include "stillmap/checkpoint/control/internal/messages.h"
#include "tests/checkpoint/control/task.h"
#include "tests/checkpoint/handoff/frames.h"
#include "tests/support/held.h"

namespace stillmap::control::testing {
namespace {

using namespace std::chrono_literals;
using handoff::connection;
using handoff::testing::end_writing;
using handoff::testing::frame;
using handoff::testing::write_frames;
using handoff::testing::write_with;

class hostile_client : public control_test {
 protected:
  void SetUp() override {
    control_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    make_memory();
  }
  connection reach() const {
    auto c = connection::connect(where(), 10s);
    if (!c) throw std::runtime_error(c.error().message());
    return std::move(*c);
  }
  // The server serves one client after another, with this timeout.
  server_options narrow(std::chrono::milliseconds timeout) {
    server_options o = written_down();
    o.timeout = timeout;
    o.max_connections = 1;
    return o;
  }
};

// Regression: each piece that it read began the timeout anew, so a few such clients kept all others out.
TEST_F(hostile_client, a_response_that_is_read_slowly_is_bounded_by_the_timeout) {
  std::vector<reservation> blocks;
  reservation_options options;
  for (int i = 0; i < 500; ++i) {  // more than a socket holds
    options.tag = std::string(4000, 'x') + std::to_string(i);
    auto made = reservation::create(dev(), page(), options);
    ASSERT_TRUE(made);
    blocks.push_back(std::move(*made));
  }
  start(narrow(200ms));
  connection slow = reach();
  ASSERT_TRUE(
      slow.send(static_cast<std::uint16_t>(kind::status), encode(empty_request{}), {}, 10s, {}));
  std::vector<char> some(32 << 10);
  std::size_t got = 0;
  for (;;) {
    std::this_thread::sleep_for(20ms);
    const ssize_t n = ::recv(slow.fd(), some.data(), some.size(), 0);
    if (n <= 0) break;
    got += static_cast<std::size_t>(n);
  }
  EXPECT_LT(got, std::size_t{1} << 20) << "all of it came";
  while (!ask().status()) std::this_thread::yield();
}

// Regression: as many as the server serves at once kept every other client out, until the timeout, and
// for ever if they came again.
TEST_F(hostile_client, idle_connections_keep_no_client_out) {
  server_options o = written_down();
  o.timeout = 10min;
  start(std::move(o));
  const std::byte half{0x53};
  std::vector<connection> idle;
  for (int i = 0; i < 20; ++i) {
    idle.push_back(reach());
    if (i % 2 == 0) {
      write_with(idle.back().fd(), {&half, 1}, {});
    }
    if (i >= 7) {
      const auto s = ask().status();
      ASSERT_TRUE(s) << i << ": " << s.error().message();
    }
  }
}

}  // namespace
}  // namespace stillmap::control::testing
