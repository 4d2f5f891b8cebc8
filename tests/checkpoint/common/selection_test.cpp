// Selections: what select() finds under a tag, and the runs and pieces that are copied from it.
#include "stillmap/checkpoint/common/selection.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "stillmap/checkpoint/common/batch_copier.h"
#include "tests/support/buffer_test.h"

namespace stillmap::checkpoint {
namespace {

using stillmap::testing::fails_with;
using stillmap::testing::holds;
using stillmap::testing::outcome;

class selection_test : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
  }
};

TEST_F(selection_test, pages_are_selected_once_and_places_in_order) {
  growable_buffer ring = filled(3, "ring", 1);
  const auto twice = ring.alias(0, 3 * page(), 2);
  ASSERT_TRUE(twice) << twice.error().message();
  const auto s = select(dev(), "ring");
  ASSERT_TRUE(s) << s.error().message();
  EXPECT_EQ(s->pages.size(), 3u);
  EXPECT_EQ(s->places.size(), 9u);
  EXPECT_EQ(s->bytes, 3 * page());
  EXPECT_TRUE(std::is_sorted(s->places.begin(), s->places.end(),
                             [](const auto &a, const auto &b) { return a.at < b.at; }));
  // One run in each of the two reservations; the contents are in one of them.
  EXPECT_EQ(s->ranges.size(), 2u);
  ASSERT_EQ(s->contents.size(), 1u);
  EXPECT_EQ(s->contents[0].range.bytes, 3 * page());
}

TEST_F(selection_test, an_unknown_tag_is_an_error_that_names_it) {
  const auto s = select(dev(), "unknown");
  EXPECT_TRUE(fails_with(outcome(s), errc::invalid_argument, "checkpoint::select"));
  EXPECT_EQ(s.error().detail().subject, "tag unknown");
}

// The ledger uses 0 for mappings that are not suspended, and tells suspensions apart by their ids.
TEST(suspension_ids, count_upwards_and_are_never_zero) {
  const std::uint64_t first = next_suspension_id();
  EXPECT_GT(first, 0u);
  EXPECT_EQ(next_suspension_id(), first + 1);
}

TEST(extend, joins_adjacent_ranges_of_one_block_only) {
  std::vector<virtual_range> runs;
  extend(runs, {device_address(0x1000), 0x1000}, true);  // nothing to extend yet
  extend(runs, {device_address(0x2000), 0x1000}, true);
  extend(runs, {device_address(0x3000), 0x1000}, false);  // adjacent, but another reservation
  extend(runs, {device_address(0x5000), 0x1000}, true);   // not adjacent
  EXPECT_EQ(runs, (std::vector<virtual_range>{{device_address(0x1000), 0x2000},
                                              {device_address(0x3000), 0x1000},
                                              {device_address(0x5000), 0x1000}}));
}

TEST(extend, joins_pieces_that_are_adjacent_in_the_contents_too) {
  std::vector<piece> pieces;
  extend(pieces, {{device_address(0x1000), 0x1000}, 0}, true);
  extend(pieces, {{device_address(0x2000), 0x1000}, 0x1000}, true);
  extend(pieces, {{device_address(0x3000), 0x1000}, 0x8000}, true);  // elsewhere in the contents
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].range.bytes, 0x2000u);
  EXPECT_EQ(pieces[1].offset, 0x8000u);
}

TEST_F(selection_test, a_copy_without_a_context_is_not_started) {
  STILLMAP_NEEDS_HOSTCUDA();
  const growable_buffer b = filled(1, "weights", 1);
  auto copier = batch_copier::create(dev(), 1);
  ASSERT_TRUE(copier) << copier.error().message();
  const virtual_range range{b.address(), 64};
  std::byte host[64];
  const auto copies = [this] {
    return counts()[driver_call::MemcpyDtoHAsync] + counts()[driver_call::MemsetD8Async];
  };
  const auto before = copies();
  stillmap::testing::hostcuda_control::fail_from("cuCtxGetCurrent", 1, CUDA_ERROR_UNKNOWN);
  const status copied = copier->start(direction::to_host, range, host, 0);
  const status cleared = copier->clear(range, 0);
  stillmap::testing::hostcuda_control::stop_failing("cuCtxGetCurrent");
  EXPECT_FALSE(copied);
  EXPECT_FALSE(cleared);
  EXPECT_EQ(copies(), before);
  EXPECT_TRUE(holds(dev(), b.address(), 64, 1));
}

TEST(part_sequence, cuts_pieces_into_parts) {
  const piece pieces[] = {{{device_address(100), 10}, 5},
                          {{device_address(200), 0}, 15},
                          {{device_address(300), 8}, 15}};
  part_sequence parts(pieces, 4);
  EXPECT_EQ(parts.size(), 5u);
  std::vector<std::pair<virtual_range, std::size_t>> all;
  while (const auto p = parts.next()) all.emplace_back(p->range, p->offset);
  EXPECT_EQ(all,
            (std::vector<std::pair<virtual_range, std::size_t>>{{{device_address(100), 4}, 5},
                                                                {{device_address(104), 4}, 9},
                                                                {{device_address(108), 2}, 13},
                                                                {{device_address(300), 4}, 15},
                                                                {{device_address(304), 4}, 19}}));
}

}  // namespace
}  // namespace stillmap::checkpoint
