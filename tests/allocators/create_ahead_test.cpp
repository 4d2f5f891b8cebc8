// Pages that the allocator's page pool creates ahead of need.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "stillmap/allocators/caching_allocator.h"
#include "tests/support/buffer_test.h"

namespace stillmap {
namespace {

class create_ahead : public testing::buffer_test {
 protected:
  // Whether so many bytes are ready, in the end.
  static bool becomes_ready(const caching_allocator &heap, std::size_t bytes) {
    using clock = std::chrono::steady_clock;
    for (const auto end = clock::now() + std::chrono::seconds(60); clock::now() < end;) {
      if (heap.stats().created_ahead == bytes) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
};

TEST_F(create_ahead, growing_uses_what_is_ready) {
  STILLMAP_NEEDS_VMM();
  const auto made = caching_allocator::create(dev(), {.create_ahead_bytes = 8 * page()});
  ASSERT_TRUE(made);
  caching_allocator &heap = **made;
  EXPECT_EQ(heap.stats().created_ahead, 0u) << "nothing grows yet";
  for (int i = 0; i < 3; ++i) {
    const auto block = heap.allocate(5 * page());
    ASSERT_TRUE(block);
    ASSERT_TRUE(becomes_ready(heap, 8 * page()));
    EXPECT_EQ(dev().space().stats().physical.bytes(), heap.stats().total.committed + 8 * page());
  }
  const auto report = heap.empty_cache();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->released, 8 * page());
  EXPECT_EQ(dev().space().stats().physical.bytes(), heap.stats().total.committed);
}

TEST_F(create_ahead, the_limit_includes_it) {
  STILLMAP_NEEDS_VMM();
  const std::size_t most = 20 * page();
  const auto made =
      caching_allocator::create(dev(), {.limit = most, .create_ahead_bytes = 64 * page()});
  ASSERT_TRUE(made);
  caching_allocator &heap = **made;
  ASSERT_TRUE(heap.allocate(12 * page()));
  ASSERT_TRUE(becomes_ready(heap, 8 * page()));
  ASSERT_TRUE(heap.allocate(8 * page())) << "all of the limit can be used";
  EXPECT_EQ(heap.stats().total.committed, most);
  EXPECT_TRUE(becomes_ready(heap, 0));
  EXPECT_EQ(dev().space().stats().physical.bytes(), most);
  EXPECT_TRUE(heap.allocate(1).error().is(errc::out_of_memory));
}

// Of what is asked for, as many pages as fit.
TEST_F(create_ahead, large_pages_are_whole) {
  STILLMAP_NEEDS_VMM();
  const auto made = caching_allocator::create(
      dev(), {.page_bytes = 4 * page(), .create_ahead_bytes = 7 * page()});
  ASSERT_TRUE(made);
  ASSERT_TRUE((*made)->allocate(4 * page()));
  EXPECT_TRUE(becomes_ready(**made, 4 * page()));
}

// Memory that was created ahead is not missing where the device has no more.
TEST_F(create_ahead, a_full_device_is_used_to_the_end) {
  STILLMAP_NEEDS_VMM();
  STILLMAP_NEEDS_HOSTCUDA();
  const auto made = caching_allocator::create(dev(), {.create_ahead_bytes = 16 * page()});
  ASSERT_TRUE(made);
  caching_allocator &heap = **made;
  leave_free(40);
  for (int i = 0; i < 40; ++i) {
    const auto block = heap.allocate(page());
    ASSERT_TRUE(block) << i << ": " << block.error().message();
  }
  EXPECT_TRUE(heap.allocate(page()).error().is(errc::out_of_memory));
}

}  // namespace
}  // namespace stillmap
