// Several streams: when memory is reusable, which pages move, and which stream waits.
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "stillmap/vmm/address_space.h"
#include "tests/allocators/checked_heap.h"
#include "tests/support/buffer_test.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using namespace literals;
using testing::checked_heap;
using testing::hold;
using testing::release;

class streams : public testing::buffer_test {};

TEST_F(streams, a_block_freed_on_its_own_stream_is_reusable_there_at_once) {
  const stream s = make_stream();
  checked_heap h(dev());
  for (const std::size_t bytes : {std::size_t{512}, 64_KiB, 5_MiB}) {
    const auto first = h.allocate(bytes, s);
    ASSERT_TRUE(first);
    hold(s.get());
    ASSERT_TRUE(h.free(*first));
    const driver_counts before = counts();
    const auto again = h.heap().allocate(bytes, s);
    EXPECT_EQ((counts() - before).total(), 0u);
    EXPECT_EQ(*again, *first);
    ASSERT_TRUE(h.heap().free(*again, s)) << "naming its own stream is the same";
    release(s.get());
    h.settle();
  }
}

TEST_F(streams, a_stream_does_not_get_what_is_anothers) {
  const stream s = make_stream(), t = make_stream();
  checked_heap h(dev());
  const auto first = h.allocate(5_MiB, s);
  ASSERT_TRUE(first);
  ASSERT_TRUE(h.free(*first));
  const auto other = h.allocate(5_MiB, t);
  ASSERT_TRUE(other);
  EXPECT_NE(*other, *first);
  EXPECT_EQ(h.heap().stats().arenas.size(), 2u);
  h.drop_all();
}

TEST_F(streams, a_block_used_elsewhere_waits_until_that_has_passed) {
  const stream s = make_stream(), t = make_stream();
  checked_heap h(dev());
  for (const std::size_t bytes : {std::size_t{700}, 100_KiB, 5_MiB}) {
    const auto block = h.allocate(bytes, s);
    ASSERT_TRUE(block);
    hold(t.get());
    ASSERT_TRUE(h.use_on(*block, t));
    ASSERT_TRUE(h.use_on(*block, t)) << "twice is once";
    ASSERT_TRUE(h.free(*block));
    EXPECT_FALSE(h.heap().free(*block)) << "twice";
    EXPECT_FALSE(h.heap().usable_size(*block));
    EXPECT_FALSE(h.heap().record_use(*block, t));
    EXPECT_GE(h.heap().stats().total.pending_free, bytes);
    EXPECT_EQ(h.heap().stats().total.live, 0u);
    const auto other = h.allocate(bytes, s);
    ASSERT_TRUE(other);
    EXPECT_NE(*other, *block);
    ASSERT_TRUE(h.free(*other));
    release(t.get());
    h.settle();
    ASSERT_TRUE(h.heap().empty_cache());
    EXPECT_EQ(h.heap().stats().total.pending_free, 0u);
    EXPECT_EQ(h.disagreement(), "");
  }
}

// Regression: each request that no cached block served asked for them, also while other memory was free.
TEST_F(streams, free_memory_is_searched_before_pending_blocks_are_asked_for) {
  STILLMAP_NEEDS_VMM();  // what lies in which chunk is not the matter here
  const stream s = make_stream(), t = make_stream();
  const auto made = caching_allocator::create(dev());
  caching_allocator &heap = **made;
  ASSERT_TRUE(heap.allocate(24 * page(), s));
  const auto first = heap.allocate(4 * page(), s), used = heap.allocate(page(), s);
  ASSERT_TRUE(first && used);
  ASSERT_TRUE(heap.free(*first));
  ASSERT_TRUE(heap.record_use(*used, t));
  ASSERT_TRUE(heap.free(*used));
  const driver_counts before = counts();
  ASSERT_TRUE(heap.allocate(2 * page(), s));
  EXPECT_EQ((counts() - before).total(), 0u);
  EXPECT_EQ(heap.stats().total.pending_free, page());
  const std::size_t committed = heap.stats().total.committed;
  ASSERT_TRUE(heap.allocate(3 * page(), s));
  EXPECT_EQ(heap.stats().total.committed, committed) << "they are asked for before memory grows";
  EXPECT_EQ(heap.stats().total.pending_free, 0u);
}

// Regression: a server that prefills on a second stream held a tenth more.
TEST_F(streams, pending_blocks_are_asked_for_before_they_are_a_16th_of_the_memory) {
  const stream s = make_stream(), t = make_stream();
  const auto made = caching_allocator::create(dev());
  caching_allocator &heap = **made;
  ASSERT_TRUE(heap.allocate(24 * page(), s));
  const auto first = heap.allocate(4 * page(), s), used = heap.allocate(2 * page(), s);
  ASSERT_TRUE(first && used);
  ASSERT_TRUE(heap.free(*first));
  ASSERT_TRUE(heap.record_use(*used, t));
  ASSERT_TRUE(heap.free(*used));
  ASSERT_TRUE(heap.allocate(page(), s));
  EXPECT_EQ(heap.stats().total.pending_free, 0u);
}

// However much is free: each of them costs an event.
TEST_F(streams, only_so_many_pending_blocks_are_left_unasked) {
  const stream s = make_stream(), t = make_stream();
  const auto made = caching_allocator::create(dev());
  caching_allocator &heap = **made;
  const auto ample = heap.allocate(4 * page(), s);
  ASSERT_TRUE(ample && heap.allocate(64 * page(), s));
  std::vector<void *> blocks;
  for (int i = 0; i < 257; ++i) {
    const auto block = heap.allocate(12_KiB, s);
    ASSERT_TRUE(block);
    ASSERT_TRUE(heap.record_use(*block, t));
    blocks.push_back(*block);
  }
  ASSERT_TRUE(heap.free(*ample));
  for (void *const block : blocks) ASSERT_TRUE(heap.free(block));
  ASSERT_GT(heap.stats().total.pending_free, 0u);
  ASSERT_TRUE(heap.allocate(2 * page(), s));
  EXPECT_EQ(heap.stats().total.pending_free, 0u);
}

TEST_F(streams, freeing_on_another_stream_waits_for_that_one) {
  const stream s = make_stream(), t = make_stream();
  checked_heap h(dev());
  const auto block = h.allocate(5_MiB, s);
  ASSERT_TRUE(block);
  hold(t.get());
  ASSERT_TRUE(h.free_on(*block, t));
  EXPECT_EQ(h.heap().stats().total.pending_free, 5_MiB);
  release(t.get());
  h.settle();
  EXPECT_EQ(h.disagreement(), "");
}

// The memory of a busy stream serves another: that one waits, the host does not.
TEST_F(streams, pages_move_from_a_busy_stream_behind_its_work) {
  STILLMAP_NEEDS_VMM();
  const stream s = make_stream(), t = make_stream();
  checked_heap h(dev());
  const auto block = h.allocate(16 * page(), s);
  ASSERT_TRUE(block);
  h.heap().set_limit(h.heap().stats().total.committed);
  hold(s.get());
  ASSERT_TRUE(h.free(*block));
  const auto moved = h.allocate(16 * page(), t);
  ASSERT_TRUE(moved) << moved.error().message();
  EXPECT_EQ(h.heap().stats().pages_moved, 16u);
  EXPECT_EQ(h.heap().stats().host_waits, 0u);
  EXPECT_FALSE(*t.idle()) << "what it has queued comes after the other's work";
  EXPECT_EQ(h.disagreement(), "");
  ASSERT_TRUE(h.free(*moved));
  release(s.get());
  h.settle();
  EXPECT_EQ(h.disagreement(), "");
  // And back again.
  ASSERT_TRUE(h.allocate(16 * page(), s));
  EXPECT_EQ(h.heap().stats().pages_moved, 32u);
  h.settle();
  EXPECT_EQ(h.disagreement(), "");
  h.drop_all();
}

TEST_F(streams, a_busy_stream_is_not_waited_for_while_memory_can_be_created) {
  const stream s = make_stream(), t = make_stream();
  checked_heap h(dev());
  const auto block = h.allocate(64 * page(), s);
  ASSERT_TRUE(block);
  hold(s.get());
  ASSERT_TRUE(h.free(*block));
  ASSERT_TRUE(h.allocate(64 * page(), t));
  EXPECT_EQ(h.heap().stats().pages_moved, 0u);
  EXPECT_TRUE(t.synchronize());
  release(s.get());
  h.settle();
  h.drop_all();
}

TEST_F(streams, an_idle_streams_pages_are_moved_rather_than_created) {
  STILLMAP_NEEDS_VMM();
  const stream s = make_stream(), t = make_stream();
  checked_heap h(dev());
  const auto block = h.allocate(64 * page(), s);
  ASSERT_TRUE(block);
  ASSERT_TRUE(h.free(*block));
  h.settle();
  ASSERT_TRUE(h.allocate(64 * page(), t));
  EXPECT_GT(h.heap().stats().pages_moved, 56u);
  EXPECT_LT(h.heap().stats().total.committed, 70 * page());
  EXPECT_EQ(h.disagreement(), "");
  h.drop_all();
}

// Held blocks are memory too: when nothing else is left, the host waits for them.
TEST_F(streams, the_host_waits_for_held_blocks_when_nothing_else_is_left) {
  const stream s = make_stream(), t = make_stream();
  checked_heap h(dev());
  const auto block = h.allocate(8 * page(), s);
  ASSERT_TRUE(block);
  h.heap().set_limit(h.heap().stats().total.committed);
  ASSERT_TRUE(h.use_on(*block, t));
  hold(t.get());
  ASSERT_TRUE(h.free(*block));
  auto waits = std::async(std::launch::async, [&] { return h.allocate(8 * page(), s); });
  while (h.heap().stats().host_waits == 0) std::this_thread::yield();
  release(t.get());
  const auto other = waits.get();
  ASSERT_TRUE(other) << other.error().message();
  EXPECT_LE(h.heap().stats().host_waits, 4u);
  EXPECT_EQ(h.disagreement(), "");
  h.settle();
  h.drop_all();
}

TEST_F(streams, what_is_given_back_waits_for_its_stream) {
  STILLMAP_NEEDS_VMM();
  const stream s = make_stream();
  checked_heap h(dev());
  const auto block = h.allocate(8 * page(), s);
  ASSERT_TRUE(block);
  hold(s.get());
  ASSERT_TRUE(h.free(*block));
  ASSERT_TRUE(h.heap().empty_cache());
  EXPECT_EQ(h.heap().stats().total.committed, 0u);
  EXPECT_EQ(dev().space().stats().retiring_mappings, 8u);
  EXPECT_EQ(h.disagreement(), "");
  release(s.get());
  h.settle();
  ASSERT_TRUE(h.heap().empty_cache());
  EXPECT_EQ(dev().space().stats().retiring_mappings, 0u);
  EXPECT_EQ(h.disagreement(), "");
}

// A user that never learnt of fences: destroys the heap with work queued and blocks handed out.
TEST_F(streams, the_end_waits_for_the_device) {
  const stream s = make_stream(), t = make_stream();
  checked_heap h(dev());
  ASSERT_TRUE(h.allocate(3 * page(), s));
  const auto held = h.allocate(3 * page(), t);
  ASSERT_TRUE(held);
  ASSERT_TRUE(h.free_on(*held, s));
}

}  // namespace
}  // namespace stillmap
