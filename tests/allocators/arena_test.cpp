// An arena without a device: which placement a block gets. Nothing is mapped at the addresses.
#include "stillmap/allocators/internal/arena.h"

#include <gtest/gtest.h>

#include <memory>

namespace stillmap {
namespace {

constexpr std::size_t arena_page = std::size_t{2} << 20;
constexpr std::uint64_t arena_base = 0x10000000;

std::uint64_t value_of(const void *block) {
  return reinterpret_cast<std::uintptr_t>(block);
}

// An 8-page block was allocated at `remembered`, freed, and its pages were taken. Free memory that
// fits exactly lies at a lower address, once the two blocks at `arena_base` are freed.
class arena_placements : public ::testing::Test {
 protected:
  arena_placements() {
    arena_.extents.add({device_address(arena_base), 64 * arena_page});
    arena_.unpack();
    lower_[0] = grow(4);
    lower_[1] = grow(4);
    grow(1);  // keeps the two ranges apart
    void *const block = grow(8);
    remembered_ = value_of(block);
    grow(1);
    EXPECT_EQ(arena_.free(remembered_), arena::free_outcome::done);
    arena_.flush();
    EXPECT_EQ(arena_.extents.take_pages(8, taken_), 8u);
    EXPECT_EQ(taken_.size(), 1u);
    EXPECT_EQ(taken_.front()->begin, remembered_);
  }
  ~arena_placements() override { EXPECT_EQ(arena_.extents.find_inconsistency(), ""); }

  static block_request pages(std::size_t n) { return {n * arena_page, allocation_granule, 0}; }
  void *grow(std::size_t n) STILLMAP_REQUIRES(arena_.lock) {
    const auto place =
        arena_.extents.carve(n * arena_page, allocation_granule, extent_map::search::quick);
    EXPECT_TRUE(place);
    return arena_.enter(arena_.commit(*place), pages(n));
  }
  void free(void *block) STILLMAP_REQUIRES(arena_.lock) {
    EXPECT_EQ(arena_.free(value_of(block)), arena::free_outcome::done);
  }
  void free_lower() STILLMAP_REQUIRES(arena_.lock) {
    for (void *const block : lower_) free(block);
  }

  arena arena_{1, {}, arena_page};
  void *lower_[2] = {};
  std::uint64_t remembered_ = 0;
  std::vector<extent *> taken_;
};

// Regression: a commit that did not wake the placements that wait for pages.
TEST_F(arena_placements, a_placement_is_used_again_after_its_addresses_got_pages) {
  const lock_guard lock(arena_.lock);
  arena_.extents.unmapped(taken_.front());
  EXPECT_EQ(arena_.allocate(pages(8)), nullptr) << "the placement waits for pages";
  void *const front = grow(5), *const back = grow(3);
  ASSERT_EQ(value_of(front), remembered_);
  ASSERT_EQ(value_of(back), remembered_ + 5 * arena_page);
  free(front);
  free(back);
  free_lower();
  EXPECT_EQ(value_of(arena_.allocate(pages(8))), remembered_);
}

// Regression: pages that were put back did not wake the placements that wait for pages.
TEST_F(arena_placements, a_placement_is_used_again_after_its_pages_were_put_back) {
  const lock_guard lock(arena_.lock);
  EXPECT_EQ(arena_.allocate(pages(8)), nullptr) << "the placement waits for pages";
  arena_.put_back(taken_.front());
  free_lower();
  arena_.flush();  // now both ranges are free, and fit exactly
  EXPECT_EQ(value_of(arena_.allocate(pages(8))), remembered_);
}

// The pages of a placement have moved to the end of one reservation and to the begin of the next, which
// happen to be side by side. They come back as two runs.
TEST(arena_recall, pages_come_back_from_two_adjacent_reservations) {
  // On the heap: GCC's address sanitizer misaligns an object of 64-byte alignment on the stack.
  const auto on_heap = std::make_unique<arena>(1, stream_ref(), arena_page);
  arena &a = *on_heap;
  const lock_guard lock(a.lock);
  a.extents.add({device_address(arena_base), arena_page});
  a.extents.add({device_address(arena_base + arena_page), arena_page});
  const std::uint64_t placement = arena_base + 16 * arena_page;
  a.extents.add({device_address(placement), 2 * arena_page});
  a.unpack();
  const auto request = [](std::size_t n) {
    return block_request{n * arena_page, allocation_granule, 0};
  };
  const auto carve = [&](std::size_t n) STILLMAP_REQUIRES(a.lock) {
    const auto place =
        a.extents.carve(n * arena_page, allocation_granule, extent_map::search::quick);
    EXPECT_TRUE(place);
    return *place;
  };
  ASSERT_EQ(value_of(a.enter(a.commit(carve(2)), request(2))), placement);
  ASSERT_EQ(a.free(placement), arena::free_outcome::done);
  a.flush();
  const extent_map::carved_extent places[] = {carve(1), carve(1)};
  std::vector<std::uint64_t> moved;
  for (int i = 0; i < 2; ++i) {
    std::vector<extent *> taken;
    ASSERT_EQ(a.extents.take_pages(1, taken), 1u);
    const auto &to = places[taken.front()->begin == placement ? 0 : 1];
    a.extents.expect_aliases(1);
    a.extents.add_alias(taken.front(), to.missing.begin.value(), a.extents);
    moved.push_back(value_of(a.enter(a.commit(to), request(1))));
  }
  EXPECT_EQ(a.extents.aliased_bytes(), 2 * arena_page);
  EXPECT_EQ(a.allocate(request(2)), nullptr) << "its pages are in use";
  for (const std::uint64_t at : moved) EXPECT_EQ(a.free(at), arena::free_outcome::done);
  a.flush();
  EXPECT_EQ(value_of(a.allocate(request(2))), placement);
  EXPECT_EQ(a.extents.find_inconsistency(), "");
  EXPECT_EQ(a.extents.aliased_bytes(), 2 * arena_page) << "now the other addresses are";
  EXPECT_EQ(a.extents.free_bytes(), 0u);
}

}  // namespace
}  // namespace stillmap
