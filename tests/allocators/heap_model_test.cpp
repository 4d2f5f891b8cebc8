// Random operations of several streams on a machine that is nearly full; every byte is checked.
#include <gtest/gtest.h>

#include <chrono>

#include "tests/allocators/heap_model.h"
#include "tests/support/gpu_test.h"
#include "tests/support/hostcuda_control.h"

namespace stillmap::testing {
namespace {

class heap_model_test : public device_test {
 protected:
  void SetUp() override {
    device_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    pages_move_ = open_device().capabilities().vmm;
    expect_unreturnable();
  }
  bool pages_move_ = false;
};

std::optional<op_failure> judged(const op_sequence &ops) {
  return run_heap_model(ops).failed;
}

TEST_F(heap_model_test, random_sequences_agree) {
  if (const auto ops = replay_of_run()) {
    const auto failed = judged(*ops);
    EXPECT_FALSE(failed.has_value()) << failed->what << "\n  after operation " << failed->at;
    return;
  }
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds_of_run(2));
  std::uint64_t seed = seed_of_run(1), refused = 0, moved = 0;
  std::size_t sequences = 0;
  do {
    const op_sequence ops = generate_heap_ops(seed, 150);
    const heap_model_outcome out = run_heap_model(ops);
    if (out.failed) {
      FAIL() << "seed " << seed << ": " << out.failed->what << "\n" << report_failure(ops, judged);
    }
    refused += out.refused;
    moved += out.pages_moved;
    ++sequences;
    ++seed;
  } while (std::chrono::steady_clock::now() < until || sequences < 8);
  std::printf("heap model: %zu sequences agree, %llu requests refused, %llu pages moved\n",
              sequences, static_cast<unsigned long long>(refused),
              static_cast<unsigned long long>(moved));
  EXPECT_GT(refused, 0u) << "memory was never short";
  EXPECT_EQ(moved > 0, pages_move_) << "pages moved, and only where they can";
}

// Loops of several streams whose memory is short: pages are lent, and return behind an event.
TEST_F(heap_model_test, loops_that_lend_pages_agree) {
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds_of_run(2));
  std::uint64_t seed = seed_of_run(1), recalled = 0;
  std::size_t loops = 0;
  do {
    const op_sequence ops = generate_heap_loop(seed, 12);
    const heap_model_outcome out = run_heap_model(ops);
    if (out.failed) {
      FAIL() << "seed " << seed << ": " << out.failed->what << "\n" << report_failure(ops, judged);
    }
    recalled += out.pages_recalled;
    ++loops;
    ++seed;
  } while (std::chrono::steady_clock::now() < until || loops < 8);
  std::printf("heap model: %zu loops agree, %llu pages recalled\n", loops,
              static_cast<unsigned long long>(recalled));
  EXPECT_EQ(recalled > 0, pages_move_);
}

}  // namespace
}  // namespace stillmap::testing
