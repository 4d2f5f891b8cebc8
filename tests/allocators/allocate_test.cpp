// Allocation and free on one stream: block properties, driver calls, and errors of misuse.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string_view>

#include "stillmap/vmm/page_pool.h"
#include "tests/allocators/checked_heap.h"
#include "tests/support/buffer_test.h"
#include "tests/support/effort.h"
#include "tests/support/far_away.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using namespace literals;
using testing::checked_heap;
using testing::fails_with;
using testing::outcome;

class allocate : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
  }
};

TEST_F(allocate, blocks_of_all_sizes_are_apart_and_keep_their_bytes) {
  const stream s = make_stream();
  checked_heap h(dev());
  std::vector<void *> blocks;
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{512}, std::size_t{513}, 8_KiB, 8_KiB + 1, 64_KiB, 1_MiB, 2_MiB,
        2_MiB + 512, 5_MiB + 3, 17_MiB}) {
    for (int i = 0; i < 5; ++i) {
      const auto got = h.allocate(bytes, s);
      ASSERT_TRUE(got) << got.error().message();
      blocks.push_back(*got);
    }
  }
  EXPECT_EQ(h.disagreement(), "");
  for (std::size_t i = 0; i < blocks.size(); i += 2) ASSERT_TRUE(h.free(blocks[i]));
  EXPECT_EQ(h.disagreement(), "");
  for (std::size_t i = 1; i < blocks.size(); i += 2) ASSERT_TRUE(h.free(blocks[i]));
  EXPECT_EQ(h.disagreement(), "");
  EXPECT_EQ(h.heap().stats().total.live, 0u);
}

TEST_F(allocate, neighbours_share_pages_and_nothing_is_rounded_to_a_page) {
  STILLMAP_NEEDS_VMM();
  checked_heap h(dev());
  const stream s = make_stream();
  const std::size_t bytes = page() + page() / 4;  // alone it would take two pages
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(h.allocate(bytes, s));
  EXPECT_GE(h.heap().stats().total.committed, 20 * page());
  EXPECT_LE(h.heap().stats().total.committed, 22 * page()) << "a tenth more than is live";
  h.drop_all();
}

TEST_F(allocate, blocks_are_where_another_process_can_have_them_too) {
  STILLMAP_NEEDS_VMM();
  if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
  caching_allocator_options options;
  options.hint = device_address(testing::far_away);
  options.exportable = handle_type::posix_fd;
  const auto heap = caching_allocator::create(dev(), options);
  ASSERT_TRUE(heap) << heap.error().message();
  const auto block = (*heap)->allocate(3 * page());
  ASSERT_TRUE(block) << block.error().message();
  const auto range =
      dev().space().block_at(device_address(reinterpret_cast<std::uint64_t>(*block)))->range();
  EXPECT_EQ(range.begin, options.hint);
  // Regression: only the first reservation was at the hint. ThreadSanitizer has the addresses behind it.
  const bool free_behind = testing::sanitizer() != "thread";
  const stream s = make_stream();
  device_address next = range.end();
  for (const auto &[bytes, on] : {std::pair<std::size_t, stream_ref>{700, {}}, {3_MiB, s}}) {
    const auto more = (*heap)->allocate(bytes, on);
    ASSERT_TRUE(more);
    const auto there =
        dev().space().block_at(device_address(reinterpret_cast<std::uint64_t>(*more)))->range();
    if (free_behind) {
      EXPECT_EQ(there.begin, next);
    }
    next = there.end();
  }
  for (const mapping_record &m : dev().space().mappings(range)) {
    EXPECT_EQ(m.backing->properties().exportable, handle_type::posix_fd);
  }
  EXPECT_TRUE((*heap)->free(*block));
}

TEST_F(allocate, nothing_is_a_block_too) {
  checked_heap h(dev());
  const auto none = h.heap().allocate(0);
  ASSERT_TRUE(none);
  EXPECT_EQ(*none, nullptr);
  EXPECT_TRUE(h.heap().free(nullptr));
  EXPECT_TRUE(h.heap().record_use(nullptr, {}));
}

TEST_F(allocate, refuses_what_makes_no_sense) {
  checked_heap h(dev());
  allocate_options odd;
  odd.alignment = 768;
  EXPECT_TRUE(fails_with(outcome(h.heap().allocate(1, {}, odd)), errc::invalid_argument,
                         "caching_allocator::allocate", 768, 0));
  odd.alignment = 0;
  EXPECT_TRUE(fails_with(outcome(h.heap().allocate(1, {}, odd)), errc::invalid_argument,
                         "caching_allocator::allocate"));
  // Regression: 512 bytes aligned to 2^45 cost 196 MB of host memory.
  odd.alignment = std::size_t{1} << 31;
  EXPECT_TRUE(fails_with(outcome(h.heap().allocate(512, {}, odd)), errc::invalid_argument,
                         "caching_allocator::allocate", odd.alignment,
                         allocate_options::largest_alignment));
  odd.alignment = allocate_options::largest_alignment;
  const auto aligned = h.heap().allocate(512, {}, odd);
  if (has_vmm()) {
    ASSERT_TRUE(aligned) << aligned.error().message();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*aligned) % odd.alignment, 0u);
    EXPECT_LE(h.heap().stats().total.committed, 2 * page());
    ASSERT_TRUE(h.heap().free(*aligned));
  }
  EXPECT_TRUE(fails_with(outcome(h.heap().allocate(SIZE_MAX)), errc::out_of_memory,
                         "caching_allocator::allocate"));
  caching_allocator_options options;
  options.peer_devices = {97};
  EXPECT_TRUE(fails_with(outcome(caching_allocator::create(dev(), options)), errc::invalid_argument,
                         "caching_allocator::create", 97, 0));
}

TEST_F(allocate, what_is_no_block_cannot_be_freed) {
  checked_heap h(dev());
  int mine = 0;
  for (const std::size_t bytes : {std::size_t{700}, 100_KiB, 3_MiB}) {
    const auto got = h.heap().allocate(bytes);
    ASSERT_TRUE(got);
    char *const at = static_cast<char *>(*got);
    for (void *const wrong :
         {static_cast<void *>(at + 512), static_cast<void *>(at + 1), static_cast<void *>(&mine)}) {
      EXPECT_TRUE(
          fails_with(h.heap().free(wrong), errc::invalid_argument, "caching_allocator::free"))
          << bytes;
      EXPECT_TRUE(fails_with(outcome(h.heap().usable_size(wrong)), errc::invalid_argument,
                             "caching_allocator::usable_size",
                             reinterpret_cast<std::uintptr_t>(wrong), 0));
      EXPECT_FALSE(h.heap().record_use(wrong, {}));
    }
    EXPECT_TRUE(h.heap().owns(at));
    EXPECT_FALSE(h.heap().owns(&mine));
    ASSERT_TRUE(h.heap().free(at));
    EXPECT_FALSE(h.heap().free(at)) << "twice, " << bytes;
    EXPECT_FALSE(h.heap().record_use(at, {})) << bytes;
  }
}

TEST_F(allocate, aligns_as_asked) {
  const stream s = make_stream();
  checked_heap h(dev());
  std::mt19937 random(4);
  std::vector<void *> blocks;
  for (int i = 0; i < 60; ++i) {
    allocate_options how;
    how.alignment = std::size_t{1} << (random() % 25);
    const auto got = h.allocate(1 + random() % 3_MiB, s, how);
    ASSERT_TRUE(got) << got.error().message();
    blocks.push_back(*got);
    if (i % 3 == 2) {
      ASSERT_TRUE(h.free(blocks[static_cast<std::size_t>(i) / 2]));
    }
  }
  EXPECT_EQ(h.disagreement(), "");
}

// Where a machine has few addresses, an arena takes a part of what there is.
TEST_F(allocate, fewer_addresses_serve_too) {
  STILLMAP_NEEDS_VMM();
  STILLMAP_NEEDS_HOSTCUDA();
  const stream s = make_stream();
  const auto reserved = [&](int refused) {
    checked_heap h(dev());
    for (int i = 1; i <= refused; ++i) {
      testing::hostcuda_control::fail("cuMemAddressReserve", static_cast<std::uint64_t>(i),
                                      CUDA_ERROR_OUT_OF_MEMORY);
    }
    const auto got = h.allocate(3_MiB, s);
    EXPECT_TRUE(got) << got.error().message();
    const std::size_t bytes = h.heap().stats().total.reserved;
    h.drop_all();
    return bytes;
  };
  const std::size_t ample = reserved(0);
  EXPECT_GT(ample, 1_GiB);
  const std::size_t few = reserved(1);
  EXPECT_LE(few, ample / 16 + 2 * page());
  EXPECT_GE(few, 3_MiB);
}

// Regression: it was the size of the pages that were missing, or of the slab.
TEST_F(allocate, out_of_memory_names_the_request) {
  STILLMAP_NEEDS_HOSTCUDA();
  const stream s = make_stream();
  checked_heap h(dev());
  ASSERT_TRUE(h.allocate(4 * page(), s));
  leave_free(2);
  const char *op = "caching_allocator::allocate";
  const auto large = h.heap().allocate(9 * page() + 1, s);
  EXPECT_TRUE(fails_with(outcome(large), errc::out_of_memory, op));
  EXPECT_EQ(large.error().value, 9 * page() + 1);
  EXPECT_LT(large.error().limit, 9 * page());
  h.heap().set_limit(1);
  const auto small = h.heap().allocate(10 * page(), s);
  EXPECT_TRUE(fails_with(outcome(small), errc::out_of_memory, op, 10 * page(), 1));
  testing::hostcuda_control::occupy(0, 0);
  h.drop_all();
}

TEST_F(allocate, no_addresses_at_all_are_an_error) {
  STILLMAP_NEEDS_VMM();
  STILLMAP_NEEDS_HOSTCUDA();
  const stream s = make_stream();
  checked_heap h(dev());
  testing::hostcuda_control::fail_from("cuMemAddressReserve", 1, CUDA_ERROR_OUT_OF_MEMORY);
  const auto none = h.heap().allocate(3_MiB, s);
  testing::hostcuda_control::stop_failing("cuMemAddressReserve");
  ASSERT_FALSE(none);
  EXPECT_TRUE(none.error().is(errc::address_space_exhausted)) << none.error().message();
  testing::hostcuda_control::fail("cuMemAddressReserve", 1, CUDA_ERROR_UNKNOWN);
  const driver_counts before = counts();
  const auto failed = h.heap().allocate(3_MiB, s);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, std::error_code(CUDA_ERROR_UNKNOWN, cuda_category()));
  EXPECT_EQ((counts() - before)[driver_call::MemAddressReserve], 1u) << "another size is no help";
  EXPECT_TRUE(h.allocate(3_MiB, s));
  h.drop_all();
}

TEST_F(allocate, zeroes_when_asked) {
  const stream s = make_stream();
  checked_heap h(dev());
  for (const std::size_t bytes : {std::size_t{512}, 3_MiB}) {
    const auto dirty = h.allocate(bytes, s);
    ASSERT_TRUE(dirty);
    ASSERT_TRUE(h.free(*dirty));
    allocate_options how;
    how.zero = true;
    const auto clean = h.allocate(bytes, s, how);
    ASSERT_TRUE(clean);
    EXPECT_EQ(*clean, *dirty) << "the same memory, or the test shows nothing";
    ASSERT_TRUE(h.free(*clean));
  }
}

TEST_F(allocate, reports_what_it_holds) {
  checked_heap h(dev());
  const auto small = h.heap().allocate(100), large = h.heap().allocate(3_MiB + 1);
  ASSERT_TRUE(small && large);
  caching_allocator_stats s = h.heap().stats();
  EXPECT_EQ(s.total.blocks, 2u);
  EXPECT_EQ(s.total.requested, 100 + 3_MiB + 1);
  EXPECT_EQ(s.total.live, 512 + 3_MiB + 512);
  EXPECT_EQ(s.total.allocations, 2u);
  EXPECT_EQ(s.total.frees, 0u);
  EXPECT_EQ(s.pages_created * page(), s.total.committed);
  EXPECT_GT(s.host_bytes, 0u);
  ASSERT_EQ(s.arenas.size(), 1u);
  EXPECT_EQ(*h.heap().usable_size(*small), 512u);
  EXPECT_EQ(*h.heap().usable_size(*large), 3_MiB + 512);
  ASSERT_TRUE(h.heap().free(*large));
  s = h.heap().stats();
  EXPECT_EQ(s.total.live, 512u);
  EXPECT_EQ(s.total.live_peak, 512 + 3_MiB + 512);
  EXPECT_EQ(s.total.frees, 1u);
  EXPECT_EQ(s.arenas[0].frees, 1u);
  // Kept for the next request of its size where such requests recur, and pages can move meanwhile.
  for (int i = 0; i < 40; ++i) {
    const auto again = h.heap().allocate(3_MiB + 1);
    ASSERT_TRUE(again && h.heap().free(*again));
  }
  EXPECT_EQ(h.heap().stats().total.cached, has_vmm() ? 3_MiB + 512 : 0u);
  ASSERT_TRUE(h.heap().free(*small));
}

TEST_F(allocate, begins_peaks_again_when_told_to) {
  const stream one = make_stream(), other = make_stream();
  checked_heap h(dev());
  const auto large = h.heap().allocate(64_MiB, one), small = h.heap().allocate(4_MiB, other);
  ASSERT_TRUE(large && small && h.heap().free(*large));
  ASSERT_TRUE(h.heap().empty_cache());
  const caching_allocator_stats before = h.heap().stats();
  EXPECT_EQ(before.total.live_peak, 68_MiB);
  EXPECT_GE(before.committed_peak, 68_MiB);
  h.heap().reset_peaks();
  caching_allocator_stats now = h.heap().stats();
  EXPECT_EQ(now.total.live_peak, 4_MiB);
  EXPECT_EQ(now.committed_peak, now.total.committed);
  EXPECT_LT(now.committed_peak, 64_MiB);
  for (const arena_stats &a : now.arenas) EXPECT_EQ(a.live_peak, a.live);
  const auto again = h.heap().allocate(32_MiB, one);
  ASSERT_TRUE(again && h.heap().free(*again));
  now = h.heap().stats();
  EXPECT_EQ(now.total.live_peak, 36_MiB);
  EXPECT_GE(now.committed_peak, 36_MiB);
  EXPECT_LT(now.committed_peak, 68_MiB);
  ASSERT_TRUE(h.heap().free(*small));
}

TEST_F(allocate, gives_back_what_is_free_when_told_to) {
  STILLMAP_NEEDS_VMM();
  const stream s = make_stream();
  checked_heap h(dev());
  const auto stays = h.allocate(100_KiB, s), goes = h.allocate(20 * page(), s);
  ASSERT_TRUE(stays && goes);
  const std::size_t before = dev().space().stats().physical.bytes();
  ASSERT_TRUE(h.free(*goes));
  h.settle();
  const auto some = h.heap().trim(5 * page());
  ASSERT_TRUE(some);
  EXPECT_EQ(h.heap().stats().total.free_whole_pages, 5 * page());
  ASSERT_TRUE(h.heap().empty_cache());
  EXPECT_EQ(h.heap().stats().total.free_whole_pages, 0u);
  EXPECT_EQ(dev().space().stats().physical.bytes(), before - 20 * page());
  EXPECT_EQ(h.disagreement(), "");
  ASSERT_TRUE(h.allocate(20 * page(), s)) << "and can be had again";
  EXPECT_EQ(h.disagreement(), "");
  h.drop_all();
}

TEST_F(allocate, counts_the_pages_that_it_gives_back) {
  STILLMAP_NEEDS_VMM();
  const stream s = make_stream();
  checked_heap h(dev());
  const auto goes = h.allocate(8 * page(), s);
  ASSERT_TRUE(goes);
  ASSERT_TRUE(h.free(*goes));
  h.settle();
  EXPECT_EQ(h.heap().stats().pages_released, 0u);
  ASSERT_TRUE(h.heap().trim(3 * page()));
  EXPECT_EQ(h.heap().stats().pages_released, 5u);
  ASSERT_TRUE(h.heap().empty_cache());
  EXPECT_EQ(h.heap().stats().pages_released, 8u);
}

TEST_F(allocate, counts_free_memory_that_is_no_whole_page) {
  const stream s = make_stream();
  checked_heap h(dev());
  ASSERT_TRUE(h.allocate(page() + page() / 4, s));
  const arena_stats total = h.heap().stats().total;
  EXPECT_EQ(total.page_edges, page() - page() / 4) << "the rest of its second page";
  EXPECT_EQ(total.live + total.free_whole_pages + total.page_edges, total.committed);
  h.drop_all();
}

TEST_F(allocate, keeps_to_its_limit) {
  caching_allocator_options options;
  options.limit = 8 * page();
  checked_heap h(dev(), options);
  const stream s = make_stream();
  const auto half = h.allocate(4 * page(), s);
  ASSERT_TRUE(half);
  EXPECT_TRUE(fails_with(outcome(h.allocate(5 * page(), s)), errc::out_of_memory,
                         "caching_allocator::allocate", 5 * page(), 8 * page()));
  EXPECT_EQ(h.heap().stats().out_of_memory, 1u);
  EXPECT_EQ(h.disagreement(), "");
  ASSERT_TRUE(h.allocate(4 * page(), s)) << "to the last byte";
  ASSERT_TRUE(h.free(*half));
  h.heap().set_limit(4 * page());
  EXPECT_EQ(h.heap().limit(), 4 * page());
  ASSERT_TRUE(h.allocate(2 * page(), s)) << "there are free pages";
  ASSERT_TRUE(h.allocate(2 * page(), s));
  EXPECT_FALSE(h.allocate(page(), s));
  h.drop_all();
}

TEST_F(allocate, asks_who_may_have_memory_to_spare) {
  checked_heap *me = nullptr;
  void *spare = nullptr;
  std::vector<std::size_t> asked;
  caching_allocator_options options;
  options.limit = 8 * page();
  options.on_out_of_memory = [&](std::size_t bytes) {
    asked.push_back(bytes);
    if (spare == nullptr) return false;
    EXPECT_TRUE(me->free(spare));
    spare = nullptr;
    return true;
  };
  checked_heap h(dev(), options);
  me = &h;
  const stream s = make_stream();
  spare = *h.allocate(6 * page(), s);
  ASSERT_TRUE(h.allocate(4 * page(), s));
  EXPECT_EQ(asked, std::vector<std::size_t>{4 * page()});
  EXPECT_FALSE(h.allocate(5 * page(), s));
  EXPECT_EQ(asked, (std::vector<std::size_t>{4 * page(), 5 * page()}));
  EXPECT_EQ(h.heap().stats().out_of_memory, 1u);
  EXPECT_EQ(h.disagreement(), "");
  h.drop_all();
}

// Free in pieces, none of which is large enough: their pages are put together at new addresses.
TEST_F(allocate, free_pieces_serve_a_request_larger_than_any_of_them) {
  STILLMAP_NEEDS_VMM();
  const stream s = make_stream();
  checked_heap h(dev());
  caching_allocator &heap = h.heap();
  std::vector<void *> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(*h.allocate(4 * page(), s));
  heap.set_limit(heap.stats().total.committed);
  for (std::size_t i = 0; i < blocks.size(); i += 2) ASSERT_TRUE(h.free(blocks[i]));
  const driver_counts before = counts();
  const auto large = h.allocate(32 * page(), s);
  ASSERT_TRUE(large) << large.error().message();
  const driver_counts spent = counts() - before;
  EXPECT_EQ(spent[driver_call::MemCreate], 0u);
  EXPECT_EQ(spent[driver_call::MemMap], 32u);
  EXPECT_EQ(spent[driver_call::MemSetAccess], 1u);
  EXPECT_EQ(heap.stats().pages_moved, 32u);
  EXPECT_EQ(heap.stats().host_waits, 0u);
  EXPECT_EQ(h.disagreement(), "");
  EXPECT_FALSE(h.allocate(page(), s)) << "that was all there was";
  h.drop_all();
}

TEST_F(allocate, memory_is_full_only_when_blocks_fill_it) {
  STILLMAP_NEEDS_VMM();
  STILLMAP_NEEDS_HOSTCUDA();
  const stream s = make_stream();
  checked_heap h(dev());
  std::vector<void *> blocks;
  leave_free(24);
  for (int i = 0; i < 24; ++i) {
    const auto got = h.allocate(page(), s);
    ASSERT_TRUE(got) << i << ": " << got.error().message();
    blocks.push_back(*got);
  }
  const auto over = h.allocate(512, s);
  ASSERT_FALSE(over);
  EXPECT_TRUE(over.error().is(errc::out_of_memory)) << over.error().message();
  for (std::size_t i = 1; i < blocks.size(); i += 2) ASSERT_TRUE(h.free(blocks[i]));
  ASSERT_TRUE(h.allocate(12 * page() - 512, s)) << "in twelve pieces";
  ASSERT_TRUE(h.allocate(512, s)) << "too small for a slab, large enough for itself";
  EXPECT_FALSE(h.allocate(512, s));
  EXPECT_EQ(h.disagreement(), "");
  h.drop_all();
  testing::hostcuda_control::occupy(0, 0);
}

// Only a want of memory is a reason to try again: a later attempt must not hide another error.
// Where memory is short, growth takes pages of other pools that wait for queued work.
TEST_F(allocate, pages_of_another_pool_keep_that_pool) {
  STILLMAP_NEEDS_VMM();
  STILLMAP_NEEDS_HOSTCUDA();
  auto heap = std::move(*caching_allocator::create(dev()));
  const stream s = make_stream();
  auto pool = std::move(*page_pool::create(dev()));
  const std::weak_ptr<page_pool> left = pool;
  growable_buffer b = make({.reserve_bytes = 4 * page(), .pools = {pool}});
  ASSERT_TRUE(b.resize(4 * page()));
  leave_free(0);
  testing::hold(s.get());
  ASSERT_TRUE(b.close(after(s)));
  const auto block = heap->allocate(4 * page(), s);
  testing::release(s.get());
  ASSERT_TRUE(block) << block.error().message();
  pool.reset();
  EXPECT_FALSE(left.expired());
  heap.reset();
  EXPECT_TRUE(left.expired());
}

TEST_F(allocate, a_driver_error_in_the_search_for_memory_is_returned) {
  STILLMAP_NEEDS_VMM();
  STILLMAP_NEEDS_HOSTCUDA();
  checked_heap h(dev(), {.limit = 8 * page()});
  const stream s = make_stream(), t = make_stream();
  const auto busy = h.allocate(8 * page(), s);
  ASSERT_TRUE(busy);
  testing::hold(s.get());  // so that its pages are taken only by a second attempt
  ASSERT_TRUE(h.free(*busy));
  const auto expect_unknown = [&](std::size_t bytes) {
    const auto got = h.allocate(bytes, t);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, std::error_code(CUDA_ERROR_UNKNOWN, cuda_category()));
  };
  testing::hostcuda_control::fail("cuMemMap", 1, CUDA_ERROR_UNKNOWN);
  expect_unknown(4 * page());
  // A slab is out of memory, then its block alone fails.
  testing::hostcuda_control::fail("cuMemSetAccess", 1, CUDA_ERROR_OUT_OF_MEMORY);
  testing::hostcuda_control::fail("cuMemMap", 2, CUDA_ERROR_UNKNOWN);
  expect_unknown(512);
  EXPECT_EQ(testing::hostcuda_control::faults_fired(), 3u);
  EXPECT_TRUE(h.allocate(4 * page(), t));
  EXPECT_TRUE(h.allocate(512, t));
  testing::release(s.get());
  h.settle();
  EXPECT_EQ(h.disagreement(), "");
  h.drop_all();
}

}  // namespace
}  // namespace stillmap
