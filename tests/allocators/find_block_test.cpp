// The block in which an address lies.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "stillmap/allocators/caching_allocator.h"
#include "tests/support/buffer_test.h"

namespace stillmap {
namespace {

using namespace literals;
using testing::fails_with;
using testing::outcome;

// With virtual memory and without: the profiles have both.
class find_block : public testing::buffer_test {
 protected:
  static void *inside(void *block, std::size_t offset) {
    return static_cast<char *>(block) + offset;
  }
  static ::testing::AssertionResult is(const result<virtual_range> &found, void *block,
                                       std::size_t bytes) {
    if (!found) return ::testing::AssertionFailure() << found.error().message();
    if (found->begin.value() == reinterpret_cast<std::uintptr_t>(block) && found->bytes == bytes) {
      return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure()
           << found->bytes << " bytes at " << found->begin.value() << " instead of " << bytes;
  }
  static ::testing::AssertionResult none(const caching_allocator &heap, const void *at) {
    return fails_with(outcome(heap.find_block(at)), errc::invalid_argument,
                      "caching_allocator::find_block", reinterpret_cast<std::uintptr_t>(at), 0);
  }
  std::unique_ptr<caching_allocator> make_heap() {
    auto made = caching_allocator::create(dev());
    EXPECT_TRUE(made);
    return std::move(*made);
  }
};

TEST_F(find_block, finds_first_inner_and_last_addresses) {
  const auto heap = make_heap();
  std::vector<std::pair<void *, std::size_t>> blocks;
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{511}, std::size_t{512}, std::size_t{513}, 3_KiB + 1, 8_KiB,
        8_KiB + 1, 100_KiB, 1_MiB, 2_MiB, 2_MiB + 1, 5_MiB + 3}) {
    for (int i = 0; i < 4; ++i) {
      const auto got = heap->allocate(bytes);
      ASSERT_TRUE(got);
      blocks.emplace_back(*got, bytes);
    }
  }
  for (const auto &[at, bytes] : blocks) {
    for (const std::size_t offset : {std::size_t{0}, bytes / 3, bytes / 2, bytes - 1}) {
      EXPECT_TRUE(is(heap->find_block(inside(at, offset)), at, bytes)) << bytes << " + " << offset;
    }
  }
  for (const auto &[at, bytes] : blocks) ASSERT_TRUE(heap->free(at));
}

TEST_F(find_block, does_not_find_what_rounding_added) {
  const auto heap = make_heap();
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{513}, 100_KiB + 1, 3_MiB + 1}) {
    const auto got = heap->allocate(bytes);
    ASSERT_TRUE(got);
    const std::size_t usable = *heap->usable_size(*got);
    ASSERT_GT(usable, bytes);
    EXPECT_TRUE(none(*heap, inside(*got, bytes))) << bytes;
    EXPECT_TRUE(none(*heap, inside(*got, usable - 1))) << bytes;
    ASSERT_TRUE(heap->free(*got));
  }
}

TEST_F(find_block, does_not_find_what_is_freed_or_foreign) {
  const auto heap = make_heap();
  int mine = 0;
  EXPECT_TRUE(none(*heap, &mine));
  EXPECT_TRUE(none(*heap, nullptr));
  const auto other = make_heap();
  for (const std::size_t bytes : {std::size_t{700}, 100_KiB, 5_MiB}) {
    const auto block = heap->allocate(bytes), neighbour = heap->allocate(bytes);
    const auto foreign = other->allocate(bytes);
    ASSERT_TRUE(block && neighbour && foreign);
    EXPECT_TRUE(none(*heap, *foreign));
    ASSERT_TRUE(heap->free(*block));
    EXPECT_TRUE(none(*heap, *block));
    EXPECT_TRUE(none(*heap, inside(*block, bytes / 2)));
    EXPECT_TRUE(is(heap->find_block(inside(*neighbour, 5)), *neighbour, bytes));
    ASSERT_TRUE(heap->free(*neighbour));
    ASSERT_TRUE(other->free(*foreign));
  }
}

TEST_F(find_block, does_not_find_what_waits_for_another_stream) {
  STILLMAP_NEEDS_HOSTCUDA();
  const auto heap = make_heap();
  const stream s = make_stream(), t = make_stream();
  for (const std::size_t bytes : {std::size_t{700}, 100_KiB, 5_MiB}) {
    const auto block = heap->allocate(bytes, s);
    ASSERT_TRUE(block);
    testing::hold(t.get());
    ASSERT_TRUE(heap->record_use(*block, t));
    EXPECT_TRUE(is(heap->find_block(inside(*block, 3)), *block, bytes));
    ASSERT_TRUE(heap->free(*block));
    EXPECT_TRUE(none(*heap, *block));
    EXPECT_TRUE(none(*heap, inside(*block, 3)));
    testing::release(t.get());
    ASSERT_TRUE(t.synchronize());
  }
}

// Beside a map of the blocks.
TEST_F(find_block, is_right_in_a_random_sequence) {
  const auto heap = make_heap();
  std::mt19937 random(11);
  std::map<std::uintptr_t, std::size_t> blocks;
  std::vector<std::uintptr_t> seen;
  for (int step = 0; step < 2000; ++step) {
    if (blocks.size() < 60 && random() % 5 < 3) {
      const std::size_t bytes = 1 + random() % (random() % 6 == 0 ? 3_MiB : 12_KiB);
      const auto got = heap->allocate(bytes);
      ASSERT_TRUE(got);
      blocks[reinterpret_cast<std::uintptr_t>(*got)] = bytes;
      seen.push_back(reinterpret_cast<std::uintptr_t>(*got));
    } else if (!blocks.empty()) {
      const auto b = std::next(blocks.begin(), static_cast<long>(random() % blocks.size()));
      ASSERT_TRUE(heap->free(reinterpret_cast<void *>(b->first)));
      blocks.erase(b);
    }
    if (seen.empty()) continue;
    const std::uintptr_t at = seen[random() % seen.size()] + random() % 16_KiB;
    auto around = blocks.upper_bound(at);
    const bool there = around != blocks.begin() && at - (--around)->first < around->second;
    const auto found = heap->find_block(reinterpret_cast<void *>(at));
    ASSERT_EQ(found.has_value(), there) << "step " << step;
    if (there) {
      ASSERT_TRUE(is(found, reinterpret_cast<void *>(around->first), around->second));
    }
  }
  for (const auto &[at, bytes] : blocks) ASSERT_TRUE(heap->free(reinterpret_cast<void *>(at)));
}

}  // namespace
}  // namespace stillmap
