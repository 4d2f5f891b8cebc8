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
    // The model counts them itself: some faults it plants have nobody to be told of.
    expect_unreturnable();
  }

  static std::optional<op_failure> run(const op_sequence &ops) { return buffer_model::run(ops); }
};

// Each of these failed once, and says what was wrong.
struct found_before {
  const char *name, *ops;
};
constexpr found_before finds[] = {
    {"a copying fork took what a stream had still to write",
     "machine 64 2; create 0 15 3; resize 0 8773721 0; fill 0 58 7 61 0; fork 0 1"},
    {"pages spliced into another buffer outlived their pool",
     "machine 64 1; create 0 3 14; create 1 6 14; resize 1 10977048 2; splice 1 1 1 0 7 0; "
     "close 1 1; drop_pool 1; check"},
    {"pages taken from another pool's retiring mappings outlived their pool",
     "machine 24 252; create 0 1 8; resize 0 12712561 3; create 1 6 0; resize 1 2510946 3; "
     "create 2 1 11; resize 2 12801759 1; copy 0 75 3 2 73 0; create 3 6 15; "
     "reserve 2 17416029 1; shrink 2 1; reserve 3 12276475 1; drop_pool 2"},
    {"the model took pages for aliased whose alias was gone",
     "create 1 7 2; resize 1 16626039 1; alias 1 0 1 3 1; close 3 1; fork 1 3"},
    {"a call that failed once while a pool went left its mappings behind for good",
     "create 1 2 4; resize 1 5404533 1; drop_pool 1; resize 1 13944797 2; fault 10 3 3; "
     "close 1 1"},
};

TEST_F(buffer_model_test, FoundBefore) {
  for (const found_before &f : finds) {
    const auto ops = parse_ops(f.ops);
    ASSERT_TRUE(ops.has_value()) << f.ops;
    const auto failed = run(*ops);
    EXPECT_FALSE(failed.has_value()) << f.name << ": " << failed->what;
  }
}

TEST_F(buffer_model_test, RandomSequencesAgree) {
  if (const auto ops = replay_of_run()) {
    const auto failed = run(*ops);
    EXPECT_FALSE(failed.has_value()) << failed->what << "\n  after operation " << failed->at;
    return;
  }
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds_of_run(2));
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
  for (const auto &[name, t] : buffer_model::tallies()) {
    std::printf("  %-14s %6ju done %6ju refused %6ju failed\n", name.c_str(),
                static_cast<std::uintmax_t>(t.done), static_cast<std::uintmax_t>(t.refused),
                static_cast<std::uintmax_t>(t.failed));
  }
}

}  // namespace
}  // namespace stillmap::testing
