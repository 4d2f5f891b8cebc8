// What empty_cache and trim say of the memory that they could not release.
#include <gtest/gtest.h>

#include <vector>

#include "stillmap/allocators/caching_allocator.h"
#include "tests/support/buffer_test.h"
#include "tests/support/captured_graph.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using namespace literals;

class release_report_test : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    heap_ = *caching_allocator::create(dev());
  }
  void TearDown() override {
    heap_.reset();
    buffer_test::TearDown();
  }
  void free_block_of(std::size_t bytes, stream_ref s) {
    const auto block = heap_->allocate(bytes, s);
    ASSERT_TRUE(block);
    ASSERT_TRUE(heap_->free(*block));
  }
  std::unique_ptr<caching_allocator> heap_;
};

TEST_F(release_report_test, each_reason_is_told_with_its_bytes) {
  STILLMAP_NEEDS_VMM();
  const stream busy = make_stream(), other = make_stream(), pooled = make_stream(),
               capturing = make_stream(), ordinary = make_stream();
  const private_pool pool = *heap_->create_pool();
  ASSERT_TRUE(heap_->begin_allocate_to_pool(pool, pooled));
  free_block_of(3 * page(), pooled);
  ASSERT_TRUE(heap_->end_allocate_to_pool(pool, pooled));
  free_block_of(5 * page(), capturing);
  testing::captured_graph graph(dev(), capturing);
  const auto used = heap_->allocate(7 * page(), busy);
  testing::hold(other.get());
  ASSERT_TRUE(heap_->record_use(*used, other));
  ASSERT_TRUE(heap_->free(*used));
  const auto live = heap_->allocate(page() - 64_KiB, ordinary);
  free_block_of(9 * page(), ordinary);

  auto kept = heap_->trim(4 * page());
  ASSERT_TRUE(kept) << kept.error().message();
  EXPECT_EQ(kept->kept, 4 * page());
  EXPECT_EQ(kept->page_edges, 64_KiB) << "beside whole pages, too";
  auto report = heap_->empty_cache();
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(kept->released + report->released, 9 * page());
  EXPECT_EQ(report->kept, 0u);
  EXPECT_EQ(report->private_pools, 3 * page());
  EXPECT_EQ(report->capturing, 5 * page());
  EXPECT_EQ(report->pending_free, 7 * page());
  EXPECT_EQ(report->page_edges, 64_KiB);
  EXPECT_EQ(report->stayed() + page() - 64_KiB, heap_->stats().total.committed);

  EXPECT_TRUE(graph.end());
  testing::release(other.get());
  ASSERT_TRUE(other.synchronize());
  ASSERT_TRUE(heap_->release_pool(pool));
  ASSERT_TRUE(heap_->free(*live));
  report = heap_->empty_cache();
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->released, 16 * page());
  EXPECT_EQ(report->stayed(), 0u);
}

TEST_F(release_report_test, what_is_kept_is_kept_of_all_streams_together) {
  STILLMAP_NEEDS_VMM();
  const stream s = make_stream(), t = make_stream(), u = make_stream();
  std::vector<void *> blocks;
  for (const stream *each : {&s, &t, &u}) blocks.push_back(*heap_->allocate(6 * page(), *each));
  for (void *const block : blocks) ASSERT_TRUE(heap_->free(block));
  ASSERT_EQ(heap_->stats().total.committed, 18 * page());
  const auto report = heap_->trim(5 * page());
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->released, 13 * page());
  EXPECT_EQ(report->kept, 5 * page());
  EXPECT_EQ(heap_->stats().total.committed, 5 * page());
}

TEST_F(release_report_test, a_chunk_in_use_keeps_its_free_part) {
  if (has_vmm()) GTEST_SKIP() << "memory comes in chunks only without VMM";
  const stream s = make_stream();
  const auto live = heap_->allocate(100_KiB, s);
  free_block_of(40_MiB, s);
  const auto report = heap_->empty_cache();
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->released, 40_MiB);
  EXPECT_EQ(report->page_edges, 2_MiB - 100_KiB);
  EXPECT_EQ(report->stayed(), 2_MiB - 100_KiB);
  ASSERT_TRUE(heap_->free(*live));
}

}  // namespace
}  // namespace stillmap
