// What must hold where the host has no memory at all: no lock stays held, and blocks are freed.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tests/allocators/checked_heap.h"
#include "tests/support/buffer_test.h"
#include "tests/support/host_memory.h"

namespace stillmap {
namespace {

using testing::checked_heap;
using testing::fail_host_allocation;

using starved_allocator = testing::buffer_test;

// Regression: std::bad_alloc left the allocator, and the arena's lock was held for ever.
TEST_F(starved_allocator, an_allocation_without_host_memory_leaves_no_arena_locked) {
  auto made = caching_allocator::create(dev());
  ASSERT_DONE(made);
  const stream s = make_stream();
  ASSERT_TRUE((*made)->allocate(512, s));
  bool happened = false;
  for (int i = 0; i < 100'000 && !happened; ++i) {
    fail_host_allocation failing(0, true);
    try {
      const auto block = (*made)->allocate(512, s);
      failing.stop();
      EXPECT_TRUE(block || block.error().code == std::errc::not_enough_memory);
    } catch (const std::bad_alloc &) {
      failing.stop();
      ADD_FAILURE() << "std::bad_alloc left the library";
    }
    happened = failing.happened();
  }
  EXPECT_TRUE(happened);
  // On another thread, which cannot be stopped if it waits for ever.
  const std::shared_ptr<caching_allocator> heap = std::move(*made);
  std::promise<caching_allocator_stats> promise;
  auto stats = promise.get_future();
  std::thread([heap, said = std::move(promise)]() mutable {
    said.set_value(heap->stats());
  }).detach();
  ASSERT_EQ(stats.wait_for(std::chrono::seconds(10)), std::future_status::ready)
      << "an arena is locked";
  EXPECT_TRUE(heap->allocate(512, s));
  while (heap.use_count() != 1) std::this_thread::yield();
}

// What frees memory cannot want any.
TEST_F(starved_allocator, blocks_are_freed_without_host_memory) {
  checked_heap h(dev());
  const stream s = make_stream(), t = make_stream();
  std::vector<void *> blocks;
  for (std::size_t i = 0; i < 600; ++i) {
    const auto block = h.allocate(i % 3 == 0 ? 512 : (i + 1) * 1024, s);
    ASSERT_DONE(block);
    if (i % 2 == 0) ASSERT_DONE(h.use_on(*block, t));
    blocks.push_back(*block);
  }
  std::optional<fail_host_allocation> failing;
  h.before_call = [&] { failing.emplace(0, true); };
  h.after_call = [&] { failing.reset(); };
  for (void *const block : blocks) ASSERT_DONE(h.free(block));
  h.before_call = h.after_call = [] {};
  EXPECT_EQ(h.disagreement(), "");
  h.settle();
  ASSERT_DONE(h.heap().empty_cache());
  EXPECT_EQ(h.heap().stats().total.pending_free, 0u);
}

}  // namespace
}  // namespace stillmap
