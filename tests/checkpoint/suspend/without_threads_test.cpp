// Memory that is suspended to a file where no thread can be started for it.
#include "stillmap/checkpoint/suspend/suspender.h"
#include "tests/support/buffer_test.h"
#include "tests/support/no_threads.h"
#include "tests/support/op_sequence.h"

namespace stillmap::checkpoint {
namespace {

class suspending_without_threads : public stillmap::testing::buffer_test {};

// Regression: the exception ended the process.
TEST_F(suspending_without_threads, copies_on_the_thread_that_there_is) {
  STILLMAP_NEEDS_HOSTCUDA();
  // Work on a stream takes no thread of hostcuda's own then.
  restart_as(stillmap::testing::machine_config("schedule=seeded:3").c_str());
  STILLMAP_NEEDS_VMM();
  const growable_buffer weights = filled(5, "weights", 1), more = filled(3, "weights", 2);
  const auto tested = suspender::create(dev());
  ASSERT_TRUE(tested) << tested.error().message();
  suspend_options to_file;
  to_file.store = backing_store::file;
  // hostcuda starts its thread that reclaims memory.
  ASSERT_DONE((*tested)->suspend("weights", to_file));
  ASSERT_DONE((*tested)->resume("weights"));
  {
    const stillmap::testing::no_threads none;
    ASSERT_DONE((*tested)->suspend("weights", to_file));
    ASSERT_DONE((*tested)->resume("weights"));
  }
  EXPECT_TRUE(stillmap::testing::holds(dev(), weights.address(), 5 * page(), 1));
  EXPECT_TRUE(stillmap::testing::holds(dev(), more.address(), 3 * page(), 2));
}

}  // namespace
}  // namespace stillmap::checkpoint
