// Pages that are larger than the device's granularity: caching_allocator_options::page_bytes.
#include <gtest/gtest.h>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/vmm/address_space.h"
#include "tests/allocators/checked_heap.h"
#include "tests/support/buffer_test.h"

namespace stillmap {
namespace {

using testing::checked_heap;
using testing::fails_with;

class page_size : public testing::buffer_test {
 protected:
  caching_allocator_options large(std::size_t pages = 4) const {
    return {.page_bytes = pages * page()};
  }
};

TEST_F(page_size, other_sizes_are_refused) {
  const auto refused = [&](std::size_t bytes, std::size_t bound) {
    const auto made = caching_allocator::create(dev(), {.page_bytes = bytes});
    ASSERT_TRUE(fails_with(testing::outcome(made), errc::invalid_argument,
                           "caching_allocator::create", bytes, bound));
    EXPECT_EQ(made.error().unit, error_unit::bytes);
  };
  constexpr std::size_t largest = caching_allocator_options::largest_page;
  refused(page() / 2, page());
  refused(1, page());
  refused(page() + 1, largest);
  refused(3 * page(), largest);
  refused(2 * largest, largest);
  refused(SIZE_MAX, largest);
  EXPECT_EQ(dev().space().stats().live_blocks, 0u);
}

// One create, one map and one set-access for a block of one page.
TEST_F(page_size, growth_creates_and_maps_whole_pages) {
  STILLMAP_NEEDS_VMM();
  const auto made = caching_allocator::create(dev(), large());
  ASSERT_TRUE(made) << made.error().message();
  caching_allocator &heap = **made;
  EXPECT_EQ(heap.stats().page_bytes, 4 * page());
  ASSERT_TRUE(heap.allocate(3 * page()));
  const driver_counts before = counts();
  ASSERT_TRUE(heap.allocate(8 * page()));
  const driver_counts made_now = counts() - before;
  EXPECT_EQ(made_now[driver_call::MemCreate], 2u);
  EXPECT_EQ(made_now[driver_call::MemMap], 2u);
  EXPECT_EQ(made_now[driver_call::MemSetAccess], 1u);
  EXPECT_EQ(heap.stats().total.committed, 12 * page());
  EXPECT_EQ(heap.stats().pages_created, 3u);
  EXPECT_EQ(dev().space().stats().physical.bytes(), 12 * page());
}

// A page moves as a whole, where no block is left in it.
TEST_F(page_size, pages_move_as_wholes) {
  STILLMAP_NEEDS_VMM();
  caching_allocator_options options = large();
  options.limit = 32 * page();
  checked_heap heap(dev(), options);
  const stream s = make_stream();
  std::vector<void *> blocks;
  for (int i = 0; i < 8; ++i) {
    const auto block = heap.allocate(4 * page(), s);
    ASSERT_TRUE(block);
    blocks.push_back(*block);
  }
  for (int i = 0; i < 8; i += 2) ASSERT_TRUE(heap.free(blocks[static_cast<std::size_t>(i)]));
  ASSERT_TRUE(heap.allocate(16 * page(), s));
  EXPECT_EQ(heap.heap().stats().pages_moved, 4u);
  EXPECT_EQ(heap.heap().stats().total.committed, 32 * page());
  EXPECT_TRUE(heap.allocate(1, s).error().is(errc::out_of_memory));
  for (int i = 1; i < 8; i += 2) ASSERT_TRUE(heap.free(blocks[static_cast<std::size_t>(i)]));
  heap.settle();
  EXPECT_EQ(heap.disagreement(), "");
  ASSERT_TRUE(heap.trim(0));
  EXPECT_EQ(heap.heap().stats().total.committed, 16 * page());
}

// A limit that is not a multiple of the page counts down to whole pages.
TEST_F(page_size, a_limit_counts_whole_pages) {
  STILLMAP_NEEDS_VMM();
  caching_allocator_options options = large();
  options.limit = 11 * page();
  const auto made = caching_allocator::create(dev(), options);
  ASSERT_TRUE(made);
  EXPECT_TRUE((*made)->allocate(9 * page()).error().is(errc::out_of_memory));
  ASSERT_TRUE((*made)->allocate(8 * page()));
  EXPECT_EQ((*made)->stats().total.committed, 8 * page());
}

TEST_F(page_size, the_largest_page_serves_every_size) {
  STILLMAP_NEEDS_VMM();
  STILLMAP_NEEDS_HOSTCUDA();
  caching_allocator_options options;
  options.page_bytes = caching_allocator_options::largest_page;
  checked_heap heap(dev(), options);
  const stream s = make_stream(), other = make_stream();
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{8192}, std::size_t{1} << 20, page(),
                                  5 * page() / 2, options.page_bytes}) {
    ASSERT_TRUE(heap.allocate(bytes, s));
    ASSERT_TRUE(heap.allocate(bytes, other));
  }
  heap.settle();
  EXPECT_EQ(heap.disagreement(), "");
}

// Where pages cannot be mapped, there are none: the setting is checked and not used.
TEST_F(page_size, chunks_do_not_know_it) {
  if (has_vmm()) GTEST_SKIP() << "the device maps pages";
  const auto made = caching_allocator::create(dev(), large());
  ASSERT_TRUE(made) << made.error().message();
  ASSERT_TRUE((*made)->allocate(1000));
  EXPECT_EQ((*made)->stats().total.committed, page());
}

}  // namespace
}  // namespace stillmap
