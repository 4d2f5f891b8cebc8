// The picture of two heaps side by side.
#include "tools/stillmap/trace/heap_comparison.h"

#include <gtest/gtest.h>

#include <numeric>

namespace stillmap::tool {
namespace {

constexpr std::uint64_t base = std::uint64_t{1} << 40;

// Blocks of 100 bytes: # live, c cached, - free, . uncommitted, l aliased.
heap_map map_of(const std::vector<std::string> &arenas) {
  heap_map m;
  for (const std::string &text : arenas) {
    heap_map::arena &a = m.arenas.emplace_back();
    for (std::size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (c == ' ') continue;  // not an address of the heap
      const heap_part part = c == '-'   ? heap_part::free
                             : c == 'c' ? heap_part::cached
                             : c == '.' ? heap_part::uncommitted
                             : c == 'l' ? heap_part::aliased
                                        : heap_part::live;
      heap_extent &s = a.extents.emplace_back();
      s.range = {device_address(base * m.arenas.size() + 100 * i), 100};
      s.part = part;
    }
  }
  return m;
}

TEST(HeapComparison, WhatIsFreeIsCountedInPieces) {
  const heap_sums s = sums_of(map_of({"##--c#-..-l#- -", "-"}));
  EXPECT_EQ(s.live, 400u);
  EXPECT_EQ(s.free, 800u);
  EXPECT_EQ(s.pieces,
            6u);  // --c, -, - before aliased, - at the end of addresses, -, and the other's
  EXPECT_EQ(s.largest, 300u);
  EXPECT_EQ(sums_of({}).pieces, 0u);
}

TEST(HeapComparison, CellsHoldEqualPartsOfTheCapacity) {
  const auto cells = cells_of(map_of({"###-", ".#."}), 1000, 4);  // 250 bytes each
  ASSERT_EQ(cells.size(), 4u);
  EXPECT_DOUBLE_EQ(cells[0].live, 1);
  EXPECT_DOUBLE_EQ(cells[1].live, (50 + 100) / 250.0);
  EXPECT_DOUBLE_EQ(cells[1].free, 100 / 250.0);
  EXPECT_DOUBLE_EQ(cells[2].live + cells[2].free + cells[3].live + cells[3].free, 0);
  for (const std::size_t n : {1u, 7u, 100u, 1000u}) {
    double live = 0, free = 0;
    for (const heap_cell &c : cells_of(map_of({"##-#c-.#l", "#-"}), 1234, n)) {
      live += c.live * 1234 / static_cast<double>(n);
      free += c.free * 1234 / static_cast<double>(n);
    }
    EXPECT_NEAR(live, 500, 1e-6) << n;
    EXPECT_NEAR(free, 400, 1e-6) << n;
  }
  EXPECT_EQ(cells_of(heap_map{}, 0, 3).size(), 3u);
}

TEST(HeapComparison, TheTerminalIsNotWiderThanItIs) {
  const heap_side left{"one",
                       "1 GiB live, 200 MiB in a great many small pieces that are hard to use",
                       map_of({"####-#-#"}), 1000},
      right{"other", "all", map_of({"########"}), 1000};
  for (const int width : {40, 80, 200}) {
    terminal t;
    t.width = width;
    const std::string text = draw_side_by_side(left, right, t);
    std::size_t lines = 0;
    for (std::size_t at = 0; at < text.size(); ++lines) {
      const std::size_t end = text.find('\n', at);
      ASSERT_NE(end, std::string::npos);
      EXPECT_LE(end - at, static_cast<std::size_t>(std::max(width, 66))) << text;  // the last
      at = end + 1;
    }
    EXPECT_EQ(lines, 17u);  // titles, rows, what is below, what the letters mean
    EXPECT_NE(text.find("####"), std::string::npos);
    t.utf8 = true;
    EXPECT_NE(draw_side_by_side(left, right, t).find("█"), std::string::npos);
  }
}

}  // namespace
}  // namespace stillmap::tool
