// An arena without a device: which placement a block gets. Nothing is mapped at the addresses.
#include "stillmap/allocators/engine/arena.h"

#include <gtest/gtest.h>

#include <memory>

namespace stillmap {
namespace {

constexpr std::size_t arena_page = std::size_t{2} << 20;
constexpr std::uint64_t arena_base = 0x10000000;

std::uint64_t value_of(const void *block) {
  return reinterpret_cast<std::uintptr_t>(block);
}

// A block of 8 pages was allocated at `remembered`, freed, and its pages were taken. The other blocks are
// the same as before it was allocated.
class arena_places : public ::testing::Test {
 protected:
  arena_places() {
    arena_.extents().add({device_address(arena_base), 64 * arena_page});
    arena_.set_repeats(true);
    grow(1);
    void *const block = grow(8);
    remembered_ = value_of(block);
    free(block);
    arena_.blocks().flush();
    EXPECT_EQ(arena_.extents().take_pages(8, taken_), 8u);
    EXPECT_EQ(taken_.size(), 1u);
    EXPECT_EQ(taken_.front()->begin, remembered_);
  }
  ~arena_places() override { EXPECT_EQ(arena_.extents().find_inconsistency(), ""); }

  static block_request pages(std::size_t n) { return {n * arena_page, allocation_granule, 0}; }
  void *grow(std::size_t n) STILLMAP_REQUIRES(arena_.lock()) {
    EXPECT_EQ(arena_.allocate(pages(n)), nullptr);
    const auto place =
        arena_.extents().carve(n * arena_page, allocation_granule, extent_map::search::quick);
    EXPECT_TRUE(place);
    return arena_.blocks().enter(arena_.extents().commit(*place), pages(n));
  }
  void free(void *block) STILLMAP_REQUIRES(arena_.lock()) {
    EXPECT_EQ(arena_.blocks().free(value_of(block)), free_outcome::done);
  }

  arena arena_{1, {}, arena_page};
  std::uint64_t remembered_ = 0;
  std::vector<extent *> taken_;
};

TEST_F(arena_places, a_place_is_used_again_after_its_addresses_got_pages) {
  const lock_guard lock(arena_.lock());
  arena_.extents().unmapped(taken_.front());
  EXPECT_EQ(arena_.allocate(pages(8)), nullptr) << "the place has no pages";
  void *const front = grow(5), *const back = grow(3);
  ASSERT_EQ(value_of(front), remembered_);
  ASSERT_EQ(value_of(back), remembered_ + 5 * arena_page);
  free(front);
  free(back);
  EXPECT_EQ(value_of(arena_.allocate(pages(8))), remembered_);
}

TEST_F(arena_places, a_place_is_used_again_after_its_pages_were_put_back) {
  const lock_guard lock(arena_.lock());
  EXPECT_EQ(arena_.allocate(pages(8)), nullptr) << "the place has no pages";
  arena_.extents().put_back(taken_.front());
  EXPECT_EQ(value_of(arena_.allocate(pages(8))), remembered_);
}

// In each state the request goes where it went in that state, whatever else is free.
TEST_F(arena_places, a_request_goes_where_it_went_with_the_same_blocks) {
  const lock_guard lock(arena_.lock());
  arena_.extents().put_back(taken_.front());
  void *const first = arena_.allocate(pages(4));
  void *const second = arena_.allocate(pages(4));
  ASSERT_EQ(value_of(first), remembered_);
  ASSERT_EQ(value_of(second), remembered_ + 4 * arena_page);
  free(first);
  free(second);
  EXPECT_EQ(arena_.allocate(pages(4)), first);
  free(first);
  EXPECT_EQ(value_of(arena_.allocate(pages(8))), remembered_) << "from both halves";
}

// What is freed stays whole for the next request of its size that nothing is remembered for.
TEST_F(arena_places, a_cached_block_of_the_size_comes_before_other_free_memory) {
  const lock_guard lock(arena_.lock());
  arena_.extents().put_back(taken_.front());
  void *const large = arena_.allocate(pages(5));
  void *const small = arena_.allocate(pages(2));
  free(large);
  free(small);
  EXPECT_EQ(arena_.allocate(pages(2)), small) << "in a state that never was";
}

// The fast path, which searches nothing, serves an iteration that is as the one before.
TEST_F(arena_places, what_is_asked_for_in_the_same_order_is_reused_without_a_search) {
  const lock_guard lock(arena_.lock());
  arena_.extents().put_back(taken_.front());
  const auto reused = [&]() STILLMAP_REQUIRES(arena_.lock()) {
    int n = 0;
    std::vector<void *> blocks;
    for (const std::size_t each : {1u, 3u, 2u}) {
      void *const block = arena_.blocks().reuse(pages(each));
      if (block != nullptr) ++n;
      blocks.push_back(block != nullptr ? block : arena_.allocate_not_reused(pages(each)));
      EXPECT_NE(blocks.back(), nullptr);
    }
    for (void *const block : blocks) free(block);
    return n;
  };
  EXPECT_EQ(reused(), 0);
  EXPECT_EQ(reused(), 2) << "what follows the last of an iteration is not known yet";
  EXPECT_EQ(reused(), 3);
  EXPECT_EQ(reused(), 3);
}

// A program may change: what it moved counts half after so many allocations, and so on.
TEST_F(arena_places, moved_pages_are_forgotten_by_halves) {
  const lock_guard lock(arena_.lock());
  arena_.note_moved(100);
  arena_.age_moved();
  EXPECT_EQ(arena_.moved(), 100u);
  block_counters &n = arena_.blocks().counters();
  n.allocations += policy::moved_half_life + 1;
  arena_.age_moved();
  arena_.age_moved();
  EXPECT_EQ(arena_.moved(), 50u) << "once for that time";
  n.allocations += policy::moved_half_life + 1;
  arena_.age_moved();
  EXPECT_EQ(arena_.moved(), 25u);
  n.allocations -= 2 * (policy::moved_half_life + 1);
}

// The pages of a placement have moved to the end of one reservation and to the begin of the next, which
// happen to be side by side. They come back as two runs.
TEST(arena_recall, pages_come_back_from_two_adjacent_reservations) {
  // On the heap: GCC's address sanitizer misaligns an object of 64-byte alignment on the stack.
  const auto on_heap = std::make_unique<arena>(1, stream_ref(), arena_page);
  arena &a = *on_heap;
  const lock_guard lock(a.lock());
  a.extents().add({device_address(arena_base), arena_page});
  a.extents().add({device_address(arena_base + arena_page), arena_page});
  const std::uint64_t placement = arena_base + 16 * arena_page;
  a.extents().add({device_address(placement), 2 * arena_page});
  a.set_repeats(true);
  const auto request = [](std::size_t n) {
    return block_request{n * arena_page, allocation_granule, 0};
  };
  const auto carve = [&](std::size_t n) STILLMAP_REQUIRES(a.lock()) {
    const auto place =
        a.extents().carve(n * arena_page, allocation_granule, extent_map::search::quick);
    EXPECT_TRUE(place);
    return *place;
  };
  ASSERT_EQ(a.allocate(request(2)), nullptr);
  ASSERT_EQ(value_of(a.blocks().enter(a.extents().commit(carve(2)), request(2))), placement);
  ASSERT_EQ(a.blocks().free(placement), free_outcome::done);
  a.blocks().flush();
  const extent_map::carved_extent places[] = {carve(1), carve(1)};
  std::vector<std::uint64_t> moved;
  for (int i = 0; i < 2; ++i) {
    std::vector<extent *> taken;
    ASSERT_EQ(a.extents().take_pages(1, taken), 1u);
    const auto &to = places[taken.front()->begin == placement ? 0 : 1];
    a.extents().expect_aliases(1);
    a.extents().add_alias(taken.front(), to.missing.begin.value(), a.extents());
    moved.push_back(value_of(a.blocks().enter(a.extents().commit(to), request(1))));
  }
  EXPECT_EQ(a.extents().aliased_bytes(), 2 * arena_page);
  EXPECT_EQ(a.allocate(request(2)), nullptr) << "its pages are in use";
  for (const std::uint64_t at : moved) EXPECT_EQ(a.blocks().free(at), free_outcome::done);
  EXPECT_EQ(a.blocks().cached_bytes(), 2 * arena_page);
  a.blocks().flush();
  EXPECT_EQ(a.blocks().cached_bytes(), 0u);
  EXPECT_EQ(a.blocks().counters().recalled, 0u);
  EXPECT_EQ(value_of(a.allocate(request(2))), placement);
  EXPECT_EQ(a.blocks().counters().recalled, 2u);
  EXPECT_EQ(a.extents().find_inconsistency(), "");
  EXPECT_EQ(a.extents().aliased_bytes(), 2 * arena_page) << "now the other addresses are";
  EXPECT_EQ(a.extents().free_bytes(), 0u);
}

}  // namespace
}  // namespace stillmap
