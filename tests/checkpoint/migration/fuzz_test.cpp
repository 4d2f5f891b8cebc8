// Runs the fuzzer's entry on its corpus, and on random mutations of it.
// tests/system/fuzz/README.md says how to run it under libFuzzer.
#include <gtest/gtest.h>

#include "tests/checkpoint/migration/fuzz_entry.h"
#include "tests/checkpoint/migration/hostile_source.h"
#include "tests/support/buffer_test.h"
#include "tests/support/effort.h"

namespace stillmap::migration {
namespace {

class migration_fuzz : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
  }
  std::string run(const stillmap::testing::fuzz_input &input) const {
    return fuzz_migration(dev(), input.data(), input.size());
  }
};

TEST_F(migration_fuzz, the_corpus) {
  int came = 0;
  for (const auto &input : fuzz_corpus()) {
    EXPECT_EQ(run(input), "");
    if (input[0] != static_cast<std::uint8_t>(fuzz_mode::session)) continue;
    const auto bytes = std::as_bytes(std::span(input)).subspan(1);
    came += run_hostile_source(dev(), bytes).came ? 1 : 0;
  }
  EXPECT_GE(came, 2) << "sessions that are told to their end";
}

TEST_F(migration_fuzz, changes_of_the_corpus) {
  std::mt19937_64 random(79);
  for (const auto &good : fuzz_corpus()) {
    const int changes = good[0] == static_cast<std::uint8_t>(fuzz_mode::session) ? 40 : 2000;
    const int step = stillmap::testing::sanitizer().empty() ? 1 : 2;
    for (int i = 0; i < changes; i += step) {
      ASSERT_EQ(run(stillmap::testing::changed_by_dice(good, random)), "") << i;
    }
  }
}

}  // namespace
}  // namespace stillmap::migration
