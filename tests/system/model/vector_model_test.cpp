// Random operations on device_vector against std::vector, for elements of several sizes.
#include <gtest/gtest.h>

#include <chrono>

#include "tests/support/gpu_test.h"
#include "tests/support/vector_model.h"

namespace stillmap::testing {
namespace {

class vector_model_test : public device_test {};

// Each of these failed once, and says what was wrong.
struct failed_before {
  const char *name, *ops;
};
constexpr failed_before failures[] = {
    {"a vector appended to itself was read where it had been before it grew",
     "machine 64 75 4; push 1 1000; insert 1 596916 2544; append_async 1 15557; push 1 1116; "
     "append_self 1"},
    {"the same on the copying fallback, which moves whenever it grows",
     "machine 64 4 2; append 0 196512; append 0 136038; append_self 0"},
    {"an assign that failed had thrown the old elements away",
     "machine 64 0 4; push 1 1250; fault 3 0; assign 1 29081; check 1"},
};

TEST_F(vector_model_test, FoundBefore) {
  for (const failed_before &f : failures) {
    const auto ops = parse_ops(f.ops);
    ASSERT_TRUE(ops.has_value()) << f.ops;
    const auto failed = run_vector_model(*ops);
    EXPECT_FALSE(failed.has_value()) << f.name << ": " << failed->what;
  }
}

TEST_F(vector_model_test, RandomSequencesAgree) {
  if (const auto ops = replay_of_run()) {
    const auto failed = run_vector_model(*ops);
    EXPECT_FALSE(failed.has_value()) << failed->what << "\n  after operation " << failed->at;
    return;
  }
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds_of_run(1));
  std::uint64_t seed = seed_of_run(1);
  std::size_t sequences = 0;
  do {
    const op_sequence ops = generate_vector_ops(seed, 60);
    if (run_vector_model(ops)) {
      FAIL() << "seed " << seed << ": " << report_failure(ops, run_vector_model);
    }
    ++sequences;
    ++seed;
  } while (std::chrono::steady_clock::now() < until);
  std::printf("vector model: %zu sequences, all agree\n", sequences);
}

}  // namespace
}  // namespace stillmap::testing
