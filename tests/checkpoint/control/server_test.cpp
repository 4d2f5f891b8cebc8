// What a server tells, and does for, its own process.
#include <semaphore>
#include <thread>

#include "tests/checkpoint/control/task.h"
#include "tests/support/gpu_test.h"

namespace stillmap::control::testing {
namespace {

class own_server : public control_test {
 protected:
  void SetUp() override {
    control_test::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) make_memory();
  }
  result<server> create(server_options options) {
    return server::create(dev(), where(), std::move(options));
  }
  snapshot_request save_weights() const {
    snapshot_request r;
    r.tags = {"weights"};
    r.path = file("a.smi");
    return r;
  }
};

TEST_F(own_server, its_process_sees_the_current_request_and_cancels_it) {
  std::binary_semaphore stopping(0);
  server_options o = written_down();
  o.task.quiesce = [&](auto, const std::stop_token &stop) -> status {
    stopping.release();
    while (!stop.stop_requested()) std::this_thread::yield();
    return make_error(errc::operation_canceled, "stopped");
  };
  auto mine = create(std::move(o));
  ASSERT_DONE(mine);
  EXPECT_EQ(mine->job().request, request_kind::none);
  const auto nothing = mine->abort();
  ASSERT_FALSE(nothing);
  EXPECT_TRUE(nothing.error().is(errc::invalid_argument));
  EXPECT_STREQ(nothing.error().operation, "control::server::abort");

  result<image::written> saved = image::written();
  std::thread operating([&] { saved = ask().snapshot(save_weights()); });
  stopping.acquire();
  EXPECT_EQ(mine->job().request, request_kind::snapshot);
  const auto cancelled = mine->abort();
  operating.join();
  ASSERT_DONE(cancelled);
  EXPECT_EQ(*cancelled, request_kind::snapshot);
  ASSERT_FALSE(saved);
  EXPECT_TRUE(saved.error().is(errc::operation_canceled)) << saved.error().message();
  EXPECT_EQ(files(), 0u);
  EXPECT_EQ(mine->job().request, request_kind::none);
}

TEST_F(own_server, a_task_that_keeps_its_memory_is_not_asked_to_give_it_away) {
  server_options o = written_down();
  o.keeps_memory = "the task has no use without its memory";
  auto mine = create(std::move(o));
  ASSERT_DONE(mine);
  handoff_request hand;
  hand.tags = {"weights"};
  hand.to = new_place();
  hand.timeout = std::chrono::milliseconds(0);
  migrate_request move;
  move.tags = {"weights"};
  move.to = "localhost:1";
  move.certificate = move.key = move.authorities = "/none";
  for (const error &why : {ask().handoff(hand).error(), ask().migrate(move).error()}) {
    EXPECT_TRUE(why.is(errc::not_supported)) << why.message();
    EXPECT_NE(why.message().find("the task has no use"), std::string::npos) << why.message();
  }
  EXPECT_TRUE(seen().empty());
  ASSERT_DONE(ask().snapshot(save_weights()));
  EXPECT_TRUE(memory_is_whole());
}

}  // namespace
}  // namespace stillmap::control::testing
