// Runs the fuzz entry on its corpus and on random changes of it.
// tests/system/fuzz/README.md says how to run it under libFuzzer.
#include <gtest/gtest.h>

#include <random>

#include "stillmap/checkpoint/common/layout.h"
#include "stillmap/checkpoint/handoff/internal/wire.h"
#include "tests/checkpoint/handoff/fuzz_entry.h"

namespace stillmap::handoff {
namespace {

TEST(wire_fuzz, the_corpus_is_good_messages) {
  const auto corpus = fuzz_corpus();
  std::size_t layouts = 0;
  for (const auto &input : corpus) {
    EXPECT_EQ(fuzz_wire(input.data(), input.size()), "");
    const auto *begin = reinterpret_cast<const std::byte *>(input.data() + 1);
    const std::span<const std::byte> body(begin, input.size() - 1);
    if (input[0] == static_cast<std::uint8_t>(fuzz_mode::hello)) {
      EXPECT_TRUE(decode_hello(body));
    }
    if (input[0] != static_cast<std::uint8_t>(fuzz_mode::layout)) continue;
    ++layouts;
    const auto l = checkpoint::decode_layout(body);
    ASSERT_TRUE(l);
    const status s = check(*l, std::size_t{2} << 20);
    EXPECT_TRUE(s) << s.error().message();
  }
  EXPECT_EQ(layouts, 4u);
}

TEST(wire_fuzz, changes_of_the_corpus) {
  std::mt19937_64 random(78);
  for (const auto &good : fuzz_corpus()) {
    for (int i = 0; i < 3000; ++i) {
      const auto input = stillmap::testing::changed_by_dice(good, random);
      ASSERT_EQ(fuzz_wire(input.data(), input.size()), "");
    }
  }
}

}  // namespace
}  // namespace stillmap::handoff
