// Which programs count as repeating themselves.
#include "stillmap/allocators/engine/growth_pattern.h"

#include <gtest/gtest.h>

#include <random>

namespace stillmap {
namespace {

TEST(growth_pattern, what_comes_again_recurs) {
  growth_pattern p;
  const auto iteration = [&] {
    for (std::uint64_t i = 1; i <= 40; ++i) p.add(i << 20, i, 512 * i);
  };
  iteration();
  EXPECT_FALSE(p.repeats());
  iteration();
  EXPECT_TRUE(p.repeats());
  EXPECT_FALSE(p.varies());
}

TEST(growth_pattern, random_sizes_vary) {
  growth_pattern p;
  std::mt19937_64 random(1);
  for (int i = 0; i < 10000; ++i)
    p.add(random() % (1 << 30), random() % 1000, 512 * (random() % 9));
  EXPECT_FALSE(p.repeats());
  EXPECT_TRUE(p.varies());
}

// More requests in an iteration than are remembered.
TEST(growth_pattern, long_iterations_recur) {
  growth_pattern p;
  for (int iteration = 0; iteration < 4; ++iteration) {
    for (std::uint64_t i = 1; i <= 50000; ++i) p.add(i * 512, i % 777, 512 * (i % 13));
  }
  EXPECT_TRUE(p.repeats());
}

// What is remembered outlives the growth of the table, at 64, 128 and 256 requests.
TEST(growth_pattern, a_growing_memory_forgets_nothing) {
  for (const std::uint64_t length : {60, 70, 130, 200}) {
    growth_pattern p;
    for (std::uint64_t i = 1; i <= length; ++i) p.add(i << 20, i, 512 * i);
    EXPECT_FALSE(p.repeats());
    for (std::uint64_t i = 1; i <= length; ++i) p.add(i << 20, i, 512 * i);
    EXPECT_TRUE(p.repeats()) << length;
  }
}

// Of each step a sixth comes again, in one run, and the rest never: training with sequences of random
// lengths.
TEST(growth_pattern, a_program_of_which_parts_recur_does_not_repeat) {
  growth_pattern p;
  std::mt19937_64 random(1);
  int mistaken = 0;
  for (int step = 0; step < 200; ++step) {
    const std::uint64_t length = random() % (1 << 20);
    for (std::uint64_t i = 1; i <= 250; ++i) p.add(length * i, i, 512 * (length % (7 * i)));
    for (std::uint64_t i = 1; i <= 50; ++i) {
      p.add(i << 20, i, 512 * i);
      if (p.repeats() && step > 0) ++mistaken;
    }
  }
  EXPECT_LT(mistaken, 100) << "of 10,000";
}

TEST(growth_pattern, costs_little_until_there_is_much_to_remember) {
  growth_pattern p;
  p.add(1 << 20, 1, 512);
  EXPECT_LE(p.host_bytes(), 4096u);
  for (std::uint64_t i = 0; i < 100000; ++i) p.add(i << 20, i, 512);
  EXPECT_LE(p.host_bytes(), 32768u);
}

TEST(growth_pattern, one_that_changes_is_noticed) {
  growth_pattern p;
  for (int i = 0; i < 100; ++i) p.add(1 << 20, 1, 512);
  EXPECT_TRUE(p.repeats());
  for (std::uint64_t i = 0; i < 64; ++i) p.add(i << 22, i, 1024);
  EXPECT_FALSE(p.repeats());
  EXPECT_TRUE(p.varies());
}

}  // namespace
}  // namespace stillmap
