// Memory for blocks that the caller names.
#include "stillmap/allocators/kv/block_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/remap.h"

#include "tests/support/buffer_test.h"

namespace stillmap::testing {
namespace {

// Four blocks in a page, two ranges.
class kv_block_memory : public buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    auto made = kv::block_memory::create(
        dev(),
        {.shape = {4, 2, page() / 64}, .tokens_per_block = 4, .blocks = 64, .layers_per_range = 2});
    ASSERT_DONE(made);
    memory_ = std::move(*made);
  }
  void TearDown() override {
    memory_.reset();
    buffer_test::TearDown();
  }
  status step() {
    const status prepared = memory_->prepare(stream_ref::legacy());
    const status begun = memory_->begin_step();
    return prepared ? begun : prepared;
  }
  std::unique_ptr<kv::block_memory> memory_;
};

TEST_F(kv_block_memory, named_blocks_get_memory_and_lose_it) {
  ASSERT_DONE(memory_->commit(10, 7));  // page groups 2, 3 and 4
  EXPECT_FALSE(memory_->is_committed(10, 7));
  EXPECT_EQ(memory_->stats().pending, 7u);
  ASSERT_DONE(step());
  EXPECT_TRUE(memory_->is_committed(10, 7));
  EXPECT_FALSE(memory_->is_committed(9));
  EXPECT_FALSE(memory_->is_committed(17));
  EXPECT_EQ(memory_->stats().mapped_bytes, 3 * memory_->layout().group_bytes());
  const std::vector<std::pair<std::size_t, std::size_t>> ten{{10, 7}};
  EXPECT_EQ(memory_->committed_ranges(), ten);

  ASSERT_DONE(memory_->commit(9, 2));  // its neighbours have its page
  EXPECT_TRUE(memory_->is_committed(9, 8));
  ASSERT_DONE(memory_->decommit(0, 12));
  ASSERT_DONE(memory_->decommit(0, 12));
  ASSERT_DONE(step());
  ASSERT_DONE(memory_->trim());
  EXPECT_TRUE(memory_->is_committed(12, 5));
  EXPECT_EQ(memory_->stats().mapped_bytes, 2 * memory_->layout().group_bytes());
  ASSERT_DONE(memory_->decommit(0, 64));
  ASSERT_DONE(memory_->trim());
  EXPECT_EQ(memory_->stats().mapped_bytes, 0u);
}

// As a connector does that registers memory with a NIC.
TEST_F(kv_block_memory, registrations_follow_the_pages) {
  std::mutex lock;  // the worker calls, too
  std::map<std::uint64_t, std::size_t> registered;
  bool always_known = true;
  const auto subscription = dev().space().on_backing_change([&](const backing_event &e) {
    const std::lock_guard held(lock);
    const std::uint64_t at = e.range.begin.value();
    if (at < memory_->range().begin.value() || at >= memory_->range().end().value()) return;
    for (std::size_t done = 0; done < e.range.bytes; done += page()) {
      if (e.when == backing_event::phase::about_to_change) {
        registered.erase(at + done);
      } else if (!dev().space().mappings({e.range.begin + done, page()}).empty()) {
        registered[at + done] = page();
      }
    }
  });
  const std::uint64_t before = memory_->generation();
  ASSERT_DONE(memory_->commit(0, 40));
  ASSERT_DONE(step());
  EXPECT_EQ(registered.size(), 10u * 2);
  EXPECT_GT(memory_->generation(), before);
  ASSERT_DONE(memory_->decommit(4, 12));
  ASSERT_DONE(step());
  ASSERT_DONE(memory_->trim());
  EXPECT_EQ(registered.size(), 7u * 2);
  std::size_t bytes = 0;
  for (const auto &m : dev().space().mappings(memory_->range())) {
    bytes += m.range.bytes;
    always_known = always_known && registered.contains(m.range.begin.value());
  }
  EXPECT_EQ(bytes, 7u * 2 * page());
  EXPECT_TRUE(always_known);
}

TEST_F(kv_block_memory, refuses_blocks_that_there_are_not) {
  EXPECT_TRUE(memory_->commit(64, 0));
  for (const auto &refused : {memory_->commit(64, 1), memory_->commit(60, 5),
                              memory_->decommit(1, SIZE_MAX), memory_->commit(SIZE_MAX, 2)}) {
    ASSERT_FALSE(refused);
    EXPECT_TRUE(refused.error().is(errc::invalid_argument));
  }
  EXPECT_FALSE(memory_->is_committed(63, 2));
  EXPECT_EQ(memory_->stats().pending, 0u);
}

// Each call says so or writes a wish only, and none maps or unmaps.
TEST_F(kv_block_memory, forgotten_blocks_stay_without_memory) {
  ASSERT_DONE(memory_->commit(0, 8));
  ASSERT_DONE(step());
  const virtual_range first{memory_->tensor(0, 0), page()};
  remap_plan away({});
  away.suspend(first, 7);
  ASSERT_DONE(dev().space().apply(std::move(away)));
  dev().space().release_suspended(first, 7);
  const std::size_t mapped = memory_->stats().mapped_bytes;
  for (int i = 0; i < 2; ++i) {
    ASSERT_DONE(memory_->commit(16, 4));
    ASSERT_DONE(memory_->decommit(0, 4));
    EXPECT_TRUE(fails_with(memory_->prepare(stream_ref::legacy()), errc::busy,
                           "kv::block_memory::prepare"));
    EXPECT_TRUE(fails_with(memory_->begin_step(), errc::busy, "kv::block_memory::begin_step"));
    EXPECT_TRUE(fails_with(outcome(memory_->trim()), errc::busy, "kv::block_memory::trim"));
    EXPECT_FALSE(memory_->is_committed(16, 4));
    EXPECT_EQ(memory_->stats().pending, 4u);
    EXPECT_EQ(memory_->stats().mapped_bytes, mapped - memory_->layout().group_bytes());
  }
}

}  // namespace
}  // namespace stillmap::testing
