// Runs the fuzz entry on its corpus and on random changes of it, for STILLMAP_MODEL_SECONDS.
// tests/system/fuzz/README.md says how to run it under libFuzzer.
#include "tests/checkpoint/control/fuzz_entry.h"
#include "tests/support/buffer_test.h"
#include "tests/support/op_sequence.h"

namespace stillmap::control {
namespace {

class control_fuzz : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
  }
  std::string run(const stillmap::testing::fuzz_input &input) const {
    return fuzz_control(dev(), input.data(), input.size());
  }
};

TEST_F(control_fuzz, the_corpus) {
  for (const auto &input : fuzz_corpus()) EXPECT_EQ(run(input), "");
}

TEST_F(control_fuzz, changes_of_the_corpus) {
  const auto until = std::chrono::steady_clock::now() +
                     std::chrono::duration<double>(stillmap::testing::seconds_of_run(0.4));
  const std::uint64_t seed = stillmap::testing::seed_of_run(80);
  std::mt19937_64 random(seed);
  const auto corpus = fuzz_corpus();
  std::uint64_t n = 0;
  for (; n < 1000 || std::chrono::steady_clock::now() < until; ++n) {
    const auto &good = corpus[n % corpus.size()];
    ASSERT_EQ(run(stillmap::testing::changed_by_dice(good, random)), "")
        << "input " << n << ", STILLMAP_SEED=" << seed;
  }
}

}  // namespace
}  // namespace stillmap::control
