// Signals and the threads of a control server.
#include "stillmap/checkpoint/handoff/connection.h"
#include "tests/checkpoint/control/task.h"
#include "tests/support/thread_signals.h"

namespace stillmap::control::testing {
namespace {

using server_threads = control_test;

TEST_F(server_threads, run_no_handler_of_the_program) {
  using stillmap::testing::signals_of_new_threads;
  const auto before = stillmap::testing::all_threads();
  start();
  // The thread that accepts, and that of a connection, which waits for a request.
  const auto idle = handoff::connection::connect(where(), std::chrono::seconds(30));
  ASSERT_TRUE(idle) << idle.error().message();
  auto found = signals_of_new_threads(before);
  for (int i = 0; found.seen < 2 && i < 3000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    found = signals_of_new_threads(before);
  }
  EXPECT_EQ(found.seen, 2);
  EXPECT_EQ(found.wrong, "");
}

}  // namespace
}  // namespace stillmap::control::testing
