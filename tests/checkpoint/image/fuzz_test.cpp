// Runs the fuzz target on its corpus and on random mutations of it.
// tests/system/fuzz/README.md says how to run it under libFuzzer.
#include <gtest/gtest.h>

#include <random>

#include "tests/checkpoint/image/fuzz_entry.h"

namespace stillmap::image {
namespace {

TEST(image_fuzz, corpus_and_changes_of_it) {
  const auto corpus = fuzz_corpus();
  ASSERT_GT(corpus.size(), 30u);
  std::mt19937_64 random(77);
  // Prefers the superblock's fields and the last blocks.
  const auto place = [&](std::size_t size) -> std::size_t {
    switch (random() % 3) {
      case 0:
        return 1 + random() % std::min<std::size_t>(size - 1, 312);
      case 1:
        return size - 1 - random() % std::min<std::size_t>(size - 1, 2 * 4096);
      default:
        return 1 + random() % (size - 1);
    }
  };
  for (const auto &good : corpus) {
    EXPECT_EQ(fuzz_image(good.data(), good.size()), "");
    for (int i = 0; i < 300; ++i) {
      const auto input = testing::changed_by_dice(good, random, place);
      ASSERT_EQ(fuzz_image(input.data(), input.size()), "");
    }
  }
}

}  // namespace
}  // namespace stillmap::image
