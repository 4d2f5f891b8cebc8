// Allocations while kernels of other streams are still running.
#include <gtest/gtest.h>

#include <vector>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/vmm/base/units.h"
#include "tests/system/gpu/kernels.h"

namespace stillmap::testing {
namespace {

using namespace literals;

class allocator_under_kernels : public gpu_test {
 protected:
  static device_address at(void *p) { return device_address(reinterpret_cast<std::uintptr_t>(p)); }
  void *must(const result<void *> &r) const {
    if (!r) throw std::runtime_error(r.error().message());
    return *r;
  }
};

TEST_F(allocator_under_kernels, memory_freed_behind_a_running_kernel_goes_to_nobody_else) {
  const stream busy = make_stream(), other = make_stream();
  const auto made = caching_allocator::create(dev());
  ASSERT_TRUE(made) << made.error().message();
  caching_allocator &heap = **made;
  for (const std::size_t bytes : {4_KiB, 512_KiB, 24_MiB}) {
    void *const block = must(heap.allocate(bytes, busy));
    start_counting(at(block), 10, busy);
    ASSERT_TRUE(heap.free(block));
    // As much as it can hold again and again, on a stream that does not wait for the kernel.
    std::vector<void *> blocks;
    for (int i = 0; i < 8; ++i) {
      blocks.push_back(must(heap.allocate(bytes, other)));
      EXPECT_NE(blocks.back(), block);
      ASSERT_TRUE(cu().set_bytes_async(at(blocks.back()), 0x5a, bytes, other.get()));
    }
    ASSERT_TRUE(other.synchronize());
    EXPECT_FALSE(*busy.idle()) << "the kernel had ended before";
    stop_counting();
    ASSERT_TRUE(busy.synchronize()) << "an access fault, were the pages gone";
    for (void *const b : blocks) {
      EXPECT_EQ(read(at(b)), 0x5a5a5a5au) << "the kernel wrote what was somebody else's";
      ASSERT_TRUE(heap.free(b));
    }
  }
}

TEST_F(allocator_under_kernels, memory_used_on_two_streams_waits_for_both) {
  const stream mine = make_stream(), reader = make_stream();
  const auto made = caching_allocator::create(dev());
  ASSERT_TRUE(made) << made.error().message();
  caching_allocator &heap = **made;
  void *const block = must(heap.allocate(24_MiB, mine));
  start_counting(at(block), 10, reader);
  ASSERT_TRUE(heap.record_use(block, reader));
  ASSERT_TRUE(heap.free(block));
  // Its own stream is idle, but the block is not free.
  std::vector<void *> blocks;
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(must(heap.allocate(24_MiB, mine)));
    ASSERT_TRUE(cu().set_bytes_async(at(blocks.back()), 0x5a, 24_MiB, mine.get()));
  }
  ASSERT_TRUE(mine.synchronize());
  EXPECT_FALSE(*reader.idle()) << "the kernel had ended before";
  stop_counting();
  ASSERT_TRUE(reader.synchronize());
  for (void *const b : blocks) {
    EXPECT_EQ(read(at(b)), 0x5a5a5a5au);
    ASSERT_TRUE(heap.free(b));
  }
  ASSERT_TRUE(heap.empty_cache());
  EXPECT_EQ(heap.stats().total.committed, 0u);
}

// On its own stream a block is free at once: what runs later there runs behind what ran before.
TEST_F(allocator_under_kernels, a_stream_computes_on_in_the_memory_it_has_just_freed) {
  const stream s = make_stream();
  const auto made = caching_allocator::create(dev());
  ASSERT_TRUE(made) << made.error().message();
  caching_allocator &heap = **made;
  void *const count = must(heap.allocate(4_KiB, s));
  const std::uint32_t words = 1u << 20;
  write(at(count), words);
  void *const first = must(heap.allocate(4_MiB, s));
  ASSERT_TRUE(heap.free(first));
  for (std::uint32_t round = 0; round < 100; ++round) {
    void *const block = must(heap.allocate(4_MiB, s));
    EXPECT_EQ(block, first) << "round " << round;
    ASSERT_TRUE(cu().set_bytes_async(at(block), 0, 4_MiB, s.get()));
    launch_increment(at(block), at(count), s);
    launch_increment(at(block), at(count), s);
    ASSERT_TRUE(heap.free(block));
  }
  ASSERT_TRUE(s.synchronize());
  EXPECT_EQ(read(at(first)), 2u);
  EXPECT_EQ(read(at(first) + (4_MiB - 4)), 2u);
  ASSERT_TRUE(heap.free(count));
}

}  // namespace
}  // namespace stillmap::testing
