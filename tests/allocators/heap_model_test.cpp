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
  // Runs sequences of one seed after the other for a while, and at least eight; adds their figures up.
  template <class Generate>
  void run_many(Generate generate) {
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds_of_run(2));
    std::uint64_t seed = seed_of_run(1);
    do {
      const op_sequence ops = generate(seed);
      const heap_model_outcome out = run_heap_model(ops);
      if (out.failed) {
        const auto judged = [](const op_sequence &shorter) {
          return run_heap_model(shorter).failed;
        };
        FAIL() << "seed " << seed << ": " << out.failed->what << "\n"
               << report_failure(ops, judged);
      }
      refused_ += out.refused;
      moved_ += out.pages_moved;
      recalled_ += out.pages_recalled;
      ++sequences_;
      ++seed;
    } while (std::chrono::steady_clock::now() < until || sequences_ < 24);
  }
  bool pages_move_ = false;
  std::size_t sequences_ = 0;
  std::uint64_t refused_ = 0, moved_ = 0, recalled_ = 0;
};

TEST_F(heap_model_test, random_sequences_agree) {
  if (const auto ops = replay_of_run()) {
    const auto failed = run_heap_model(*ops).failed;
    EXPECT_FALSE(failed.has_value()) << failed->what << "\n  after operation " << failed->at;
    return;
  }
  run_many([](std::uint64_t seed) { return generate_heap_ops(seed, 150); });
  if (HasFatalFailure()) return;
  std::printf("heap model: %zu sequences agree, %llu requests refused, %llu pages moved\n",
              sequences_, static_cast<unsigned long long>(refused_),
              static_cast<unsigned long long>(moved_));
  EXPECT_GT(refused_, 0u) << "memory was never short";
  EXPECT_EQ(moved_ > 0, pages_move_) << "pages moved, and only where they can";
}

// Loops of several streams whose memory is short: pages are lent, and return behind an event.
TEST_F(heap_model_test, loops_that_lend_pages_agree) {
  run_many([](std::uint64_t seed) { return generate_heap_loop(seed, 12); });
  if (HasFatalFailure()) return;
  std::printf("heap model: %zu loops agree, %llu pages recalled\n", sequences_,
              static_cast<unsigned long long>(recalled_));
  EXPECT_EQ(recalled_ > 0, pages_move_);
}

}  // namespace
}  // namespace stillmap::testing
