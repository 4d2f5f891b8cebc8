// Runs the fuzz entry on its corpus and on random changes of it, for STILLMAP_MODEL_SECONDS.
// tests/system/fuzz/README.md says how to run it under libFuzzer.
#include "stillmap/checkpoint/common/layout.h"
#include "stillmap/checkpoint/handoff/internal/wire.h"
#include "tests/checkpoint/handoff/fuzz_entry.h"
#include "tests/checkpoint/handoff/hostile_peer.h"
#include "tests/support/buffer_test.h"
#include "tests/support/op_sequence.h"

namespace stillmap::handoff {
namespace {

class handoff_fuzz : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
  }
  std::string run(const stillmap::testing::fuzz_input &input) const {
    return fuzz_handoff(dev(), input.data(), input.size());
  }
};

TEST_F(handoff_fuzz, the_corpus_is_good_messages) {
  std::size_t layouts = 0, handoffs = 0;
  for (const auto &input : fuzz_corpus()) {
    EXPECT_EQ(run(input), "");
    const auto body = std::as_bytes(std::span(input)).subspan(1);
    switch (static_cast<fuzz_mode>(input[0])) {
      case fuzz_mode::hello:
        EXPECT_TRUE(decode_hello(body));
        break;
      case fuzz_mode::layout: {
        ++layouts;
        const auto l = checkpoint::decode_layout(body);
        ASSERT_TRUE(l);
        const status s = check(*l, std::size_t{2} << 20);
        EXPECT_TRUE(s) << s.error().message();
        break;
      }
      case fuzz_mode::session:
        handoffs += run_hostile_peer(dev(), body).succeeded ? 1 : 0;
        break;
      default:
        break;
    }
  }
  EXPECT_EQ(layouts, 4u);
  EXPECT_EQ(handoffs, 4u) << "sessions that are told to their end";
}

TEST_F(handoff_fuzz, changes_of_the_corpus) {
  const auto until = std::chrono::steady_clock::now() +
                     std::chrono::duration<double>(stillmap::testing::seconds_of_run(0.4));
  const std::uint64_t seed = stillmap::testing::seed_of_run(78);
  std::mt19937_64 random(seed);
  const auto corpus = fuzz_corpus();
  for (std::uint64_t n = 0; n < 200 || std::chrono::steady_clock::now() < until; ++n) {
    const auto &good = corpus[n % corpus.size()];
    ASSERT_EQ(run(stillmap::testing::changed_by_dice(good, random)), "")
        << "input " << n << ", STILLMAP_SEED=" << seed;
  }
}

}  // namespace
}  // namespace stillmap::handoff
