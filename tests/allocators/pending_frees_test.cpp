// Freed blocks that other streams use: when they are free, and how often the driver is asked.
#include "stillmap/allocators/engine/pending_frees.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <vector>

namespace stillmap {
namespace {

class pending_frees_test : public ::testing::Test {
 protected:
  static stream_ref stream_number(std::uintptr_t n) {
    return stream_ref(reinterpret_cast<stream_handle>(n << 12));
  }
  // A freed block that was used on each of these streams.
  pending_block &add(std::initializer_list<std::uintptr_t> streams) {
    pending_block &b = blocks_.emplace_back();
    b.address = blocks_.size();
    for (const std::uintptr_t n : streams) b.uses.push_back({.stream = stream_number(n)});
    EXPECT_TRUE(pending_.add(b));
    return b;
  }
  // The blocks that are free, where `passed(use)` says which uses have passed.
  template <class Passed>
  std::vector<std::uint64_t> collect(Passed passed) {
    std::vector<std::uint64_t> out;
    pending_.collect(
        [&](stream_use &u) {
          const bool yes = passed(u);
          in_vain_ += yes ? 0 : 1;
          return yes;
        },
        [&](pending_block &b) { out.push_back(b.address); });
    return out;
  }

  pending_frees pending_;
  std::deque<pending_block> blocks_;
  unsigned in_vain_ = 0;
};

using addresses = std::vector<std::uint64_t>;

TEST_F(pending_frees_test, a_block_is_free_once_all_its_uses_have_passed) {
  add({1, 2});
  add({2});
  EXPECT_TRUE(pending_.has_uses_on(stream_number(1)));
  EXPECT_FALSE(pending_.has_uses_on(stream_number(3)));
  EXPECT_EQ(collect([&](const stream_use &u) { return u.stream == stream_number(2); }),
            (addresses{2}));
  EXPECT_EQ(collect([](const stream_use &) { return true; }), (addresses{1}));
  EXPECT_FALSE(pending_.has_uses_on(stream_number(1)));
}

// The latest use that has passed is found by halving.
TEST_F(pending_frees_test, of_many_uses_few_are_asked_about_in_vain) {
  constexpr std::uint64_t many = 1000;
  for (std::uint64_t passed : {1u, 2u, 500u, 999u, 1000u}) {
    pending_frees fresh;
    std::deque<pending_block> blocks(many);
    for (std::uint64_t i = 0; i < many; ++i) {
      blocks[i].uses.push_back({.stream = stream_number(1), .recorded_by = i});
      ASSERT_TRUE(fresh.add(blocks[i]));
    }
    unsigned in_vain = 0;
    std::uint64_t freed = 0, latest = 0;
    bool any = false;
    fresh.collect(
        [&](const stream_use &u) {
          if (u.recorded_by >= passed) return ++in_vain, false;
          latest = std::max(latest, u.recorded_by);
          any = true;
          return true;
        },
        [&](pending_block &) {
          // What comes later was asked about first, and answered for this one.
          EXPECT_TRUE(any && latest == passed - 1) << freed;
          ++freed;
        });
    EXPECT_EQ(freed, passed);
    EXPECT_LE(in_vain, 12u);
  }
}

// A new stream may have the handle of one that was forgotten, and passes its events earlier.
TEST_F(pending_frees_test, a_forgotten_stream_has_a_queue_of_its_own) {
  add({1});
  pending_.forget(stream_number(1), 7, fence());
  EXPECT_FALSE(pending_.has_uses_on(stream_number(1)));
  add({1});
  EXPECT_TRUE(pending_.has_uses_on(stream_number(1)));
  EXPECT_EQ(collect([](const stream_use &u) { return u.forgotten == 0; }), (addresses{2}));
  EXPECT_EQ(collect([](const stream_use &u) {
              return u.recorded && u.forgotten == 7 && u.recorded_by == 7;
            }),
            (addresses{1}));
  pending_.forget(stream_number(9), 8, fence());
}

}  // namespace
}  // namespace stillmap
