// The compared allocator of segments does what PyTorch's does: which segment serves a request, what is
// split, joined, kept and released, and what its settings change.
// Source: PyTorch's CUDACachingAllocator: kMinBlockSize, kSmallSize, kSmallBuffer, kLargeBuffer,
// kMinLargeAlloc, kRoundLarge, max_split_size, roundup_power2_divisions, expandable_segments.
#include <gtest/gtest.h>

#include <optional>

#include "bench/replay/replay_target.h"
#include "stillmap/allocators/heap_map.h"
#include "stillmap/vmm/context.h"
#include "tests/support/buffer_test.h"
#include "tests/support/stream_gate.h"

namespace stillmap::testing {
namespace {

using namespace stillmap::literals;
using namespace stillmap::replay;

class segments_test : public buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    current_.emplace(driver(), dev().context());
    stream_.emplace(make_stream());
  }
  void TearDown() override {
    target_.reset();
    stream_.reset();
    current_.reset();
    buffer_test::TearDown();
  }

  void make(const char *kind, target_options options = {}) {
    target_.reset();
    auto made = (*find_target(kind))->make(dev(), options);
    ASSERT_TRUE(made) << made.error().message();
    target_ = std::move(*made);
  }
  std::uint64_t allocate(std::size_t bytes) { return allocate(bytes, *stream_); }
  std::uint64_t allocate(std::size_t bytes, const stream &on) {
    const auto got = target_->allocate(bytes, on);
    EXPECT_TRUE(got) << got.error().message();
    return got ? reinterpret_cast<std::uintptr_t>(*got) : 0;
  }
  void free(std::uint64_t at) { EXPECT_TRUE(target_->free(reinterpret_cast<void *>(at))); }
  std::uint64_t held() const { return target_->committed_bytes(); }
  // The sizes of its blocks, in order: what is free in parentheses.
  std::string blocks() const {
    std::string out;
    const auto all = target_->snapshot();
    for (const auto &a : all->map.arenas) {
      for (const auto &e : a.extents) {
        if (e.part == heap_part::uncommitted) continue;
        const std::string size = std::to_string(e.range.bytes);
        out += e.part == heap_part::live ? size + " " : "(" + size + ") ";
      }
    }
    return out;
  }

  std::optional<context_guard> current_;
  std::optional<stream> stream_;
  std::unique_ptr<replay_target> target_;
};

TEST_F(segments_test, small_requests_share_two_mebibytes) {
  make("segments");
  const std::uint64_t a = allocate(1);
  EXPECT_EQ(held(), 2_MiB);
  EXPECT_EQ(allocate(513), a + 512);
  EXPECT_EQ(allocate(512), a + 1536);
  EXPECT_EQ(allocate(1_MiB), a + 2048);
  EXPECT_EQ(held(), 2_MiB);
  EXPECT_EQ(blocks(), "512 1024 512 1048576 (1046528) ");
  allocate(1_MiB);
  EXPECT_EQ(held(), 4_MiB);
}

TEST_F(segments_test, middle_requests_share_twenty_mebibytes) {
  make("segments");
  const std::uint64_t a = allocate(1_MiB + 1);
  EXPECT_EQ(held(), 20_MiB);
  EXPECT_EQ(allocate(10_MiB - 512), a + 1_MiB + 512);
  EXPECT_EQ(held(), 20_MiB);
  EXPECT_EQ(target_->peak_committed_bytes(), 20_MiB);
}

TEST_F(segments_test, large_requests_have_segments_of_their_own) {
  make("segments");
  allocate(10_MiB);
  EXPECT_EQ(held(), 10_MiB);
  allocate(10_MiB + 1);
  EXPECT_EQ(held(), 22_MiB);
  allocate(10_MiB - 511);  // is rounded up to ten
  EXPECT_EQ(held(), 32_MiB);
  allocate(10_MiB - 512);
  EXPECT_EQ(held(), 52_MiB);
}

TEST_F(segments_test, a_rest_is_split_off_where_it_can_be_used) {
  make("segments");
  allocate(9_MiB);
  const std::uint64_t b = allocate(10_MiB);  // leaves 1 MiB: too little for a large request
  EXPECT_EQ(blocks(), "9437184 11534336 ");
  free(b);
  allocate(10_MiB - 512);
  EXPECT_EQ(blocks(), "9437184 10485248 (1049088) ");
  make("segments");
  allocate(1_MiB);
  allocate(1_MiB - 512);
  EXPECT_EQ(blocks(), "1048576 1048064 (512) ");
}

TEST_F(segments_test, free_neighbours_are_joined) {
  make("segments");
  const std::uint64_t a = allocate(512), b = allocate(512), c = allocate(512);
  allocate(512);
  free(a);
  free(c);
  EXPECT_EQ(blocks(), "(512) 512 (512) 512 (2095104) ");
  free(b);
  EXPECT_EQ(blocks(), "(1536) 512 (2095104) ");
  EXPECT_EQ(allocate(1024), a);
}

TEST_F(segments_test, the_smallest_block_that_fits_is_used_and_the_lowest_of_these) {
  make("segments");
  std::uint64_t at[7];
  const std::size_t sizes[] = {4096, 512, 2048, 512, 2048, 512, 3072};
  for (int i = 0; i < 7; ++i) at[i] = allocate(sizes[i]);
  allocate(512);
  for (const int i : {6, 4, 2, 0}) free(at[i]);
  EXPECT_EQ(allocate(2048), at[2]);
  EXPECT_EQ(allocate(1536), at[4]);
  EXPECT_EQ(allocate(2560), at[6]);
  EXPECT_EQ(allocate(2560), at[0]);
}

TEST_F(segments_test, a_block_belongs_to_its_stream_and_waits_for_the_others_that_used_it) {
  STILLMAP_NEEDS_HOSTCUDA();
  make("segments");
  const stream other = make_stream();
  const std::uint64_t a = allocate(1_MiB);
  free(a);
  EXPECT_NE(allocate(1_MiB, other), a);
  EXPECT_EQ(held(), 4_MiB);
  EXPECT_EQ(allocate(1_MiB), a);
  void *const block = reinterpret_cast<void *>(a);
  ASSERT_TRUE(target_->record_use(block, other));
  ASSERT_TRUE(target_->record_use(block, other));
  ASSERT_TRUE(target_->record_use(block, *stream_));
  hold(other.get());
  const driver_counts before = counts();
  free(a);
  EXPECT_EQ((counts() - before)[driver_call::EventRecord], 1u);
  EXPECT_EQ(allocate(1_MiB), a + 1_MiB);
  release(other.get());
  ASSERT_TRUE(driver().synchronize_stream(other.get()));
  EXPECT_EQ(allocate(1_MiB), a);
  EXPECT_EQ(held(), 4_MiB);
  target_.reset();
}

// Every block is in the table of given ones or in the set of free ones, which cost the same.
TEST_F(segments_test, its_host_memory_grows_with_its_blocks) {
  make("segments");
  EXPECT_EQ(*target_->host_bytes(), 0u);
  std::vector<std::uint64_t> at;
  for (int i = 0; i < 1000; ++i) at.push_back(allocate(512));
  const std::uint64_t full = *target_->host_bytes();
  EXPECT_GE(full, 1000 * (sizeof(void *) * 5 + 64));
  EXPECT_LE(full, 1000 * 400u);
  for (std::size_t i = 0; i < at.size(); i += 2) free(at[i]);
  EXPECT_EQ(*target_->host_bytes(), full);
}

TEST_F(segments_test, an_unknown_address_is_an_error) {
  make("segments");
  const std::uint64_t a = allocate(1);
  free(a);
  void *const gone = reinterpret_cast<void *>(a);
  EXPECT_TRUE(fails_with(target_->free(gone), errc::invalid_argument, "segments::free"));
  EXPECT_TRUE(fails_with(target_->record_use(gone, *stream_), errc::invalid_argument,
                         "segments::record_use"));
}

TEST_F(segments_test, whole_free_segments_are_released_before_memory_is_out) {
  target_options options;
  options.limit = 42_MiB;
  make("segments", options);
  const std::uint64_t a = allocate(1), b = allocate(2_MiB), c = allocate(20_MiB);
  EXPECT_EQ(held(), 42_MiB);
  free(b);
  free(c);
  free(a);
  allocate(3_MiB);
  EXPECT_EQ(held(), 42_MiB) << "nothing was short";
  EXPECT_EQ(target_->retries(), 0u);
  allocate(21_MiB);
  EXPECT_EQ(held(), 42_MiB) << "the segment of c and the small one are gone";
  EXPECT_EQ(target_->retries(), 1u);
  const auto no = target_->allocate(30_MiB, *stream_);
  EXPECT_TRUE(fails_with(outcome(no), errc::out_of_memory, "segments", 30_MiB, 0));
}

TEST_F(segments_test, max_split_size_keeps_large_blocks_whole) {
  target_options options;
  options.max_split_size = 32_MiB;
  make("segments", options);
  const std::uint64_t large = allocate(64_MiB);
  free(large);
  EXPECT_NE(allocate(32_MiB - 512), large) << "it would have to be split";
  EXPECT_EQ(held(), 96_MiB);
  EXPECT_NE(allocate(44_MiB), large) << "it is 20 MiB larger";
  EXPECT_EQ(held(), 140_MiB);
  EXPECT_EQ(allocate(44_MiB + 512), large);
  EXPECT_EQ(held(), 140_MiB);
  EXPECT_EQ(blocks().find('('), std::string::npos) << blocks();
}

TEST_F(segments_test, a_block_of_max_split_size_is_kept_whole) {
  target_options options;
  options.max_split_size = 32_MiB;
  make("segments", options);
  const std::uint64_t exact = allocate(32_MiB);
  free(exact);
  EXPECT_NE(allocate(32_MiB - 512), exact);
  EXPECT_EQ(held(), 64_MiB);
  EXPECT_EQ(allocate(32_MiB), exact);
  EXPECT_EQ(held(), 64_MiB);
}

TEST_F(segments_test, a_map_names_the_device_and_has_an_arena_for_each_kind_of_request) {
  make("segments");
  allocate(1);
  allocate(2_MiB);
  const auto all = target_->snapshot();
  ASSERT_TRUE(all);
  EXPECT_EQ(all->device, dev().name());
  EXPECT_EQ(all->ordinal, dev().ordinal());
  ASSERT_EQ(all->map.arenas.size(), 2u);
  for (const std::size_t i : {0u, 1u}) {
    const heap_map::arena &a = all->map.arenas[i];
    EXPECT_EQ(a.id, i + 1);
    EXPECT_EQ(a.stream, stream_ref(*stream_));
    EXPECT_EQ(a.name, i == 0 ? "large requests" : "small requests");
    ASSERT_EQ(a.reserved.size(), 1u);
    EXPECT_EQ(a.reserved[0].bytes, i == 0 ? 20_MiB : 2_MiB);
    EXPECT_EQ(a.extents[0].requested, a.extents[0].range.bytes);
    EXPECT_EQ(a.extents[1].requested, 0u) << "free";
  }
}

TEST_F(segments_test, oversized_blocks_are_released_first_the_largest_before_others) {
  target_options options;
  options.max_split_size = 32_MiB;
  options.limit = 170_MiB;
  make("segments", options);
  const std::uint64_t small = allocate(1), a = allocate(40_MiB), b = allocate(50_MiB),
                      c = allocate(74_MiB);
  EXPECT_EQ(held(), 166_MiB);
  for (const std::uint64_t at : {small, a, b, c}) free(at);
  const std::uint64_t d = allocate(45_MiB);  // fits b
  EXPECT_EQ(d, b);
  allocate(33_MiB);  // fits a
  EXPECT_EQ(held(), 166_MiB);
  const std::uint64_t e = allocate(52_MiB);  // c is too large to be used, and makes room
  EXPECT_EQ(held(), 2_MiB + 40_MiB + 50_MiB + 52_MiB);
  free(d);
  free(e);
  allocate(78_MiB);  // b and e together make room; the small segment stays
  EXPECT_EQ(held(), 2_MiB + 40_MiB + 78_MiB);
}

// Blocks of other streams, and blocks that may be split, are not released first.
TEST_F(segments_test, only_oversized_blocks_of_the_stream_make_room) {
  target_options options;
  options.max_split_size = 32_MiB;
  options.limit = 124_MiB;
  make("segments", options);
  const stream other = make_stream();
  const std::uint64_t theirs = allocate(60_MiB, other), small = allocate(24_MiB),
                      large = allocate(40_MiB);
  for (const std::uint64_t at : {theirs, small, large}) free(at);
  allocate(64_MiB);
  EXPECT_EQ(held(), 64_MiB) << "40 MiB do not suffice: everything is released";
  target_.reset();
}

TEST_F(segments_test, roundup_power2_divisions_rounds_up_to_steps_between_powers_of_two) {
  target_options options;
  options.roundup_power2_divisions = 4;
  make("segments", options);
  allocate(1025);
  allocate(2048);
  allocate(2049);
  allocate(4097);
  allocate(8192);
  allocate(300'000);
  EXPECT_EQ(blocks().substr(0, 36), "1536 2048 2560 5120 8192 327680 (175");
}

TEST_F(segments_test, expanding_ones_map_chunks_as_they_grow) {
  STILLMAP_NEEDS_VMM();
  make("segments-expanding");
  const std::uint64_t a = allocate(1);
  EXPECT_EQ(held(), 2_MiB);
  EXPECT_EQ(allocate(1_MiB), a + 512);
  EXPECT_EQ(allocate(1_MiB), a + 512 + 1_MiB);
  EXPECT_EQ(held(), 4_MiB);
  const std::uint64_t b = allocate(3_MiB);
  EXPECT_EQ(held(), 24_MiB);
  const std::uint64_t c = allocate(18_MiB);
  EXPECT_EQ(c, b + 3_MiB) << "the last free bytes and a new chunk";
  EXPECT_EQ(held(), 44_MiB);
  free(b);
  EXPECT_EQ(allocate(3_MiB), b);
  EXPECT_EQ(allocate(30_MiB), c + 18_MiB);
  EXPECT_EQ(held(), 64_MiB);
}

TEST_F(segments_test, expanding_ones_unmap_whole_free_chunks_and_map_them_again) {
  STILLMAP_NEEDS_VMM();
  target_options options;
  options.limit = 100_MiB;
  make("segments-expanding", options);
  const std::uint64_t a = allocate(50_MiB), b = allocate(50_MiB);
  EXPECT_EQ(held(), 100_MiB);
  free(a);
  const auto no = target_->allocate(60_MiB, *stream_);
  EXPECT_TRUE(fails_with(outcome(no), errc::out_of_memory, "segments", 60_MiB, 0));
  EXPECT_EQ(held(), 60_MiB) << "of a, two chunks of 20 MiB were free as a whole";
  EXPECT_EQ(blocks(), "(10485760) 52428800 ");
  EXPECT_EQ(allocate(45_MiB), a);
  EXPECT_EQ(held(), 100_MiB);
  EXPECT_EQ(blocks(), "47185920 (5242880) 52428800 ");
  free(b);
  EXPECT_EQ(allocate(30_MiB), a + 45_MiB);
}

TEST_F(segments_test, expanding_ones_join_what_was_unmapped_at_different_times) {
  STILLMAP_NEEDS_VMM();
  target_options options;
  options.limit = 60_MiB;
  make("segments-expanding", options);
  const std::uint64_t a = allocate(20_MiB), b = allocate(20_MiB);
  allocate(20_MiB);
  const stream other = make_stream();
  free(a);
  const std::uint64_t c = allocate(20_MiB, other);  // the chunk of `a` makes room
  free(b);
  const std::uint64_t d = allocate(20_MiB, other);  // that of `b`
  free(c);
  free(d);
  EXPECT_EQ(allocate(40_MiB), a);
  target_.reset();
}

// A free block that begins within a chunk keeps the rest of that chunk.
TEST_F(segments_test, expanding_ones_keep_the_chunks_that_others_use) {
  STILLMAP_NEEDS_VMM();
  target_options options;
  options.limit = 80_MiB;
  make("segments-expanding", options);
  const std::uint64_t first = allocate(3_MiB), a = allocate(67_MiB), last = allocate(10_MiB);
  EXPECT_EQ(held(), 80_MiB);
  free(a);
  const stream other = make_stream();
  allocate(2_MiB, other);  // two chunks of `a` make room
  EXPECT_EQ(held(), 20_MiB + 20_MiB + 20_MiB);
  EXPECT_EQ(allocate(17_MiB), first + 3_MiB) << "the rest of the first chunk is free";
  EXPECT_EQ(allocate(10_MiB), last - 10_MiB) << "and the begin of the last";
  target_.reset();
}

TEST_F(segments_test, expanding_ones_use_the_rest_of_a_chunk_before_they_map_another) {
  STILLMAP_NEEDS_VMM();
  target_options options;
  options.limit = 100_MiB;
  make("segments-expanding", options);
  const std::uint64_t lowest = allocate(20_MiB), first = allocate(3_MiB), a = allocate(67_MiB);
  allocate(10_MiB);
  EXPECT_EQ(held(), 100_MiB);
  free(lowest);
  free(a);
  const stream other = make_stream();
  allocate(2_MiB, other);  // the chunk of the first and two of `a` make room
  EXPECT_EQ(held(), 60_MiB);
  EXPECT_EQ(allocate(17_MiB), first + 3_MiB) << "not the unmapped addresses below";
  EXPECT_EQ(held(), 60_MiB);
  target_.reset();
}

// PyTorch creates the memory of all chunks that a request needs before it maps the first.
TEST_F(segments_test, expanding_ones_map_nothing_where_memory_is_short) {
  STILLMAP_NEEDS_VMM();
  target_options options;
  options.limit = 60_MiB;
  make("segments-expanding", options);
  allocate(20_MiB);
  const driver_counts before = counts();
  const auto no = target_->allocate(60_MiB, *stream_);
  EXPECT_TRUE(fails_with(outcome(no), errc::out_of_memory, "segments", 60_MiB, 0));
  const driver_counts made = counts() - before;
  EXPECT_EQ(made[driver_call::MemCreate], 4u) << "two chunks, and again after the caches are empty";
  EXPECT_EQ(made[driver_call::MemRelease], 4u);
  EXPECT_EQ(made[driver_call::MemMap], 0u);
  EXPECT_EQ(made[driver_call::MemUnmap], 0u);
  EXPECT_EQ(held(), 20_MiB);
}

// PyTorch waits for the stream of a segment, not for the device, and unmaps chunk by chunk.
TEST_F(segments_test, expanding_ones_unmap_each_chunk_after_its_stream) {
  STILLMAP_NEEDS_VMM();
  target_options options;
  options.limit = 80_MiB;
  make("segments-expanding", options);
  const std::uint64_t a = allocate(60_MiB);
  allocate(20_MiB);
  free(a);
  const stream other = make_stream();
  const driver_counts before = counts();
  allocate(20_MiB, other);
  const driver_counts made = counts() - before;
  EXPECT_EQ(made[driver_call::MemUnmap], 3u);
  EXPECT_EQ(made[driver_call::MemRelease], 3u);
  EXPECT_EQ(made[driver_call::StreamSynchronize], 1u);
  EXPECT_EQ(made[driver_call::CtxSynchronize], 0u);
  EXPECT_EQ(held(), 40_MiB);
  target_.reset();
}

// PyTorch deletes an expandable segment that has no memory left, and reserves another when it needs one.
TEST_F(segments_test, expanding_ones_without_memory_give_up_their_addresses) {
  STILLMAP_NEEDS_VMM();
  target_options options;
  options.limit = 60_MiB;
  make("segments-expanding", options);
  free(allocate(60_MiB));
  const stream other = make_stream();
  const driver_counts before = counts();
  const std::uint64_t b = allocate(60_MiB, other);
  const driver_counts made = counts() - before;
  EXPECT_EQ(made[driver_call::MemAddressFree], 1u);
  EXPECT_EQ(made[driver_call::MemAddressReserve], 1u);
  EXPECT_EQ(held(), 60_MiB);
  EXPECT_EQ(blocks(), "62914560 ");
  free(b);
  allocate(1_MiB);
  EXPECT_EQ((counts() - before)[driver_call::MemAddressReserve], 2u) << "of small requests";
  target_.reset();
}

// What was unmapped before the driver failed stays released, and the rest is used again.
TEST_F(segments_test, expanding_ones_keep_what_could_not_be_unmapped) {
  STILLMAP_NEEDS_HOSTCUDA();
  STILLMAP_NEEDS_VMM();
  target_options options;
  options.limit = 80_MiB;
  make("segments-expanding", options);
  const std::uint64_t a = allocate(60_MiB);
  allocate(20_MiB);
  free(a);
  const stream other = make_stream();
  hostcuda_control::fail("cuMemUnmap", 2, CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(target_->allocate(20_MiB, other));
  EXPECT_EQ(held(), 60_MiB) << "one chunk of three";
  EXPECT_EQ(blocks(), "(41943040) 20971520 ");
  EXPECT_EQ(allocate(40_MiB), a + 20_MiB);
  target_.reset();
}

TEST_F(segments_test, expanding_ones_give_each_stream_a_segment) {
  STILLMAP_NEEDS_VMM();
  make("segments-expanding");
  const stream other = make_stream();
  const std::uint64_t a = allocate(3_MiB);
  free(a);
  EXPECT_NE(allocate(3_MiB, other), a);
  EXPECT_EQ(held(), 40_MiB);
  target_.reset();
}

}  // namespace
}  // namespace stillmap::testing
