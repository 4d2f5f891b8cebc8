// Random operations on growable buffers against a naive model. A failure prints a sequence that
// pastes back here, as one of the sequences of `FoundBefore`, or into STILLMAP_MODEL_REPLAY.
#include <gtest/gtest.h>

#include <chrono>

#include "tests/support/buffer_model.h"
#include "tests/support/gpu_test.h"

namespace stillmap::testing {
namespace {

class buffer_model_test : public device_test {
 protected:
  void SetUp() override {
    device_test::SetUp();
    if (!IsSkipped() && !HasFatalFailure() && !on_hostcuda()) {
      GTEST_SKIP() << "the model asks hostcuda what the driver holds; this driver is none";
    }
  }

  static std::optional<op_failure> run(const op_sequence &ops) { return buffer_model::run(ops); }
};

TEST_F(buffer_model_test, RandomSequencesAgree) {
  if (const auto ops = replay_of_run()) {
    const auto failed = run(*ops);
    EXPECT_FALSE(failed.has_value()) << failed->what << "\n  after operation " << failed->at;
    return;
  }
  const auto until = std::chrono::steady_clock::now() +
                     std::chrono::duration<double>(seconds_of_run(3));
  std::uint64_t seed = seed_of_run(1);
  std::size_t sequences = 0, operations = 0;
  do {
    const op_sequence ops = buffer_model::generate(seed, 60);
    if (run(ops)) {
      FAIL() << "seed " << seed << ": " << report_failure(ops, run);
    }
    ++sequences;
    operations += ops.size();
    ++seed;
  } while (std::chrono::steady_clock::now() < until);
  std::printf("model: %zu sequences, %zu operations, all agree\n", sequences, operations);
}

}  // namespace
}  // namespace stillmap::testing
