// Heap maps: the state of every address, and the sums over a map.
#include "stillmap/allocators/heap_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "stillmap/allocators/caching_allocator.h"
#include "tests/support/buffer_test.h"

namespace stillmap {
namespace {

using namespace literals;

heap_extent at(std::uint64_t begin, std::size_t bytes, heap_part part, std::size_t asked = 0) {
  heap_extent s;
  s.range = {device_address(begin), bytes};
  s.part = part;
  s.requested = asked;
  return s;
}

TEST(HeapFigures, AddUp) {
  heap_map::arena a;
  a.extents = {
      at(0x1000, 0x800, heap_part::live, 0x7ff),  at(0x1800, 0x1800, heap_part::free),
      at(0x3000, 0x1000, heap_part::cached),      at(0x4000, 0x1000, heap_part::uncommitted),
      at(0x5000, 0x400, heap_part::pending_free), at(0x5400, 0xc00, heap_part::free),
      at(0x6000, 0x2000, heap_part::aliased),     at(0x8000, 0x1000, heap_part::unmapping)};
  const heap_figures f = figures_of(a, 0x1000);
  EXPECT_EQ(f.live, 0x800u);
  EXPECT_EQ(f.requested, 0x7ffu);
  EXPECT_EQ(f.blocks, 1u);
  EXPECT_EQ(f.cached, 0x1000u);
  EXPECT_EQ(f.pending_free, 0x400u);
  EXPECT_EQ(f.free, 0x2400u);
  EXPECT_EQ(f.committed, f.live + f.cached + f.pending_free + f.free);
  EXPECT_EQ(f.uncommitted, 0x1000u);
  EXPECT_EQ(f.aliased, 0x2000u);
  EXPECT_EQ(f.unmapping, 0x1000u);
  EXPECT_EQ(f.reserved, 0x8000u);
  // Free and cached side by side are one piece: [0x1800, 0x4000), of it [0x2000, 0x4000) whole
  // pages; and the end of a page that is held at its begin.
  EXPECT_EQ(f.free_pieces, 2u);
  EXPECT_EQ(f.largest_free, 0x2800u);
  EXPECT_EQ(f.free_whole_pages, 0x2000u);
  EXPECT_EQ(f.page_edges, 0x1400u);
}

TEST(HeapFigures, WhatTouchesByChanceIsTwoPieces) {
  heap_map m;
  heap_map::arena &a = m.arenas.emplace_back();
  a.extents = {at(0x1000, 0x1000, heap_part::free), at(0x2000, 0x3000, heap_part::free)};
  EXPECT_EQ(figures_of(m).free_pieces, 1u);
  a.reserved = {{device_address(0x1000), 0x1000}, {device_address(0x2000), 0x3000}};
  EXPECT_EQ(figures_of(m).free_pieces, 2u);
  EXPECT_EQ(figures_of(m).largest_free, 0x3000u);
  EXPECT_EQ(figures_of(m).page_edges, 0u) << "where nothing moves there are no edges";
}

class heap_maps : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    heap_ = std::move(*caching_allocator::create(dev()));
  }
  void TearDown() override {
    heap_.reset();
    buffer_test::TearDown();
  }
  // What the map says of an address; nothing twice, and in order.
  heap_extent part_at(const void *block) const {
    const auto address = reinterpret_cast<std::uintptr_t>(block);
    heap_extent found;
    const heap_map drawn = heap_->map().value();
    for (const auto &a : drawn.arenas) {
      std::uint64_t end = 0;
      for (const heap_extent &s : a.extents) {
        EXPECT_GE(s.range.begin.value(), end);
        end = s.range.end().value();
        if (s.range.begin.value() <= address && address < end) found = s;
      }
    }
    return found;
  }
  std::unique_ptr<caching_allocator> heap_;
};

TEST_F(heap_maps, say_of_each_block_what_it_is) {
  const stream s = make_stream(), other = make_stream();
  // Blocks are cached where requests recur.
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(heap_->free(*heap_->allocate(3_MiB + 7, s)));
  void *const large = *heap_->allocate(3_MiB + 7, s);
  void *const small = *heap_->allocate(700, s);
  void *const neighbour = *heap_->allocate(900, s);
  void *const used = *heap_->allocate(1_MiB, s), *const used_small = *heap_->allocate(600, s);
  ASSERT_TRUE(heap_->record_use(used, other));
  ASSERT_TRUE(heap_->record_use(used_small, other));
  EXPECT_EQ(part_at(large),
            at(part_at(large).range.begin.value(), 3_MiB + 512, heap_part::live, 3_MiB + 7));
  EXPECT_EQ(part_at(small).part, heap_part::live);
  EXPECT_EQ(part_at(small).range.bytes, 1024u);
  EXPECT_EQ(part_at(small).requested, 700u);
  EXPECT_TRUE(part_at(small).in_slab);
  EXPECT_EQ(heap_->map()->arenas.size(), 1u);
  EXPECT_EQ(heap_->map()->arenas[0].reserved.size(), 2u)
      << "addresses of large blocks, and of small ones";

  ASSERT_TRUE(heap_->free(large));
  ASSERT_TRUE(heap_->free(small));
  ASSERT_TRUE(heap_->free(used));
  ASSERT_TRUE(heap_->free(used_small));
  EXPECT_EQ(part_at(large).part, has_vmm() ? heap_part::cached : heap_part::free);
  EXPECT_EQ(part_at(large).requested, 0u);
  EXPECT_EQ(part_at(small).part, heap_part::cached);
  EXPECT_EQ(part_at(neighbour).part, heap_part::live);
  EXPECT_EQ(part_at(used).part, heap_part::pending_free);
  EXPECT_EQ(part_at(used_small).part, heap_part::pending_free);
  EXPECT_TRUE(part_at(used_small).in_slab);

  ASSERT_TRUE(after(s).wait() && after(other).wait());
  ASSERT_TRUE(heap_->free(neighbour));
  ASSERT_TRUE(heap_->empty_cache());
  EXPECT_EQ(part_at(large).part, heap_part::uncommitted);
}

TEST_F(heap_maps, agree_with_the_figures) {
  const stream s = make_stream();
  std::vector<void *> blocks;
  for (std::size_t i = 1; i < 200; ++i) blocks.push_back(*heap_->allocate(i * i * 97, s));
  for (std::size_t i = 0; i < blocks.size(); i += 3) ASSERT_TRUE(heap_->free(blocks[i]));
  const heap_figures f = figures_of(heap_->map().value());
  const arena_stats n = heap_->stats().total;
  EXPECT_EQ(f.live, n.live);
  EXPECT_EQ(f.requested, n.requested);
  EXPECT_EQ(f.blocks, n.blocks);
  EXPECT_EQ(f.committed, n.committed);
  EXPECT_EQ(f.reserved, n.reserved);
  EXPECT_EQ(f.aliased, n.aliased);
  EXPECT_GE(f.free_whole_pages, n.free_whole_pages);  // what is cached counts too
}

}  // namespace
}  // namespace stillmap
