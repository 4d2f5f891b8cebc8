// The threads of a control server: their signals, and what happens where one cannot be started.
#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/control/internal/messages.h"
#include "tests/checkpoint/control/task.h"
#include "tests/support/no_threads.h"
#include "tests/support/thread_signals.h"

namespace stillmap::control::testing {
namespace {

using server_threads = control_test;

TEST_F(server_threads, run_no_handler_of_the_program) {
  using stillmap::testing::signals_of_new_threads;
  const auto before = stillmap::testing::threads_so_far();
  start();
  // The thread that accepts, and that of a connection, which waits for a request.
  const auto idle = checkpoint::socket_channel::connect(where(), std::chrono::seconds(30));
  ASSERT_TRUE(idle) << idle.error().message();
  auto found = signals_of_new_threads(before);
  for (int i = 0; found.seen < 2 && i < 3000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    found = signals_of_new_threads(before);
  }
  EXPECT_EQ(found.seen, 2);
  EXPECT_EQ(found.wrong, "");
}

bool is_lack_of_threads(const error &e) {
  return e.code == std::errc::resource_unavailable_try_again;
}

TEST_F(server_threads, a_server_without_one_is_an_error) {
  const std::string place = new_place();
  {
    const stillmap::testing::no_threads none;
    const auto made = server::create(dev(), place);
    ASSERT_FALSE(made);
    EXPECT_TRUE(is_lack_of_threads(made.error())) << made.error().message();
  }
  EXPECT_TRUE(server::create(dev(), place)) << "the socket is left behind";
}

TEST_F(server_threads, a_connection_without_one_is_refused) {
  start();
  {
    const stillmap::testing::no_threads none;
    const auto refused = ask().status();
    ASSERT_FALSE(refused);
    EXPECT_TRUE(is_lack_of_threads(refused.error())) << refused.error().message();
  }
  EXPECT_TRUE(ask().status());
}

// A migration needs a thread that watches its client.
TEST_F(server_threads, a_migration_without_one_is_refused) {
  using std::chrono::seconds;
  start(written_down());
  auto connected = checkpoint::socket_channel::connect(where(), seconds(30));
  ASSERT_TRUE(connected) << connected.error().message();
  // The connection has its thread once the server has answered a later one.
  ASSERT_TRUE(ask().status());
  migrate_request r;
  r.tags = {"weights"};
  r.to = "127.0.0.1:1";
  r.certificate = r.key = r.records = "/nowhere";
  r.fingerprints = {std::string(64, 'a')};
  const stillmap::testing::no_threads none;
  ASSERT_TRUE(
      connected->send(static_cast<std::uint16_t>(kind::migrate), encode(r), {}, seconds(30), {}));
  const auto answer = connected->receive(max_response_bytes, seconds(30), {});
  ASSERT_TRUE(answer) << answer.error().message();
  ASSERT_EQ(answer->kind, static_cast<std::uint16_t>(kind::refusal));
  const error why = decode_refusal(answer->body);
  EXPECT_TRUE(is_lack_of_threads(why)) << why.message();
  EXPECT_EQ(seen(), std::vector<std::string>{});
}

}  // namespace
}  // namespace stillmap::control::testing
