// Heap pictures: area is proportional to memory, each piece is drawn once, and each has a
// description.
#include "stillmap/allocators/report/heap_picture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "stillmap/allocators/report/internal/heap_layout.h"
#include "stillmap/allocators/report/internal/text_out.h"
#include "stillmap/vmm/base/format.h"
#include "stillmap/vmm/base/units.h"

namespace stillmap {
namespace {

using namespace literals;

heap_map::arena random_arena(unsigned seed) {
  heap_map::arena a;
  a.id = seed;
  std::mt19937_64 dice(seed);
  std::uint64_t at = 1_GiB;
  for (int i = 0; i < 400; ++i) {
    heap_extent s;
    const std::size_t most = dice() % 3 == 0 ? 200_MiB : 300_KiB;
    s.range = {device_address(at), (dice() % most / 512 + 1) * 512};
    s.part = static_cast<heap_part>(dice() % heap_parts);
    if (s.part == heap_part::live) s.requested = s.range.bytes - dice() % 512;
    at += s.range.bytes;
    if (dice() % 50 == 0) at += 3_GiB;  // another reservation
    a.extents.push_back(s);
  }
  return a;
}

TEST(HeapLayout, AreaIsMemoryAndNothingOverlaps) {
  constexpr double width = 500;
  constexpr std::uint64_t row = 64_MiB;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    const heap_map::arena a = random_arena(seed);
    const heap_figures f = figures_of(a, 0);
    const drawn_arena d = lay_out(a, width, row);
    double area = 0, gaps = 0, x = 0;
    unsigned in_row = 0;
    std::uint64_t memory = 0, live = 0, pieces = 0, end = 0;
    for (const drawn_piece &p : d.pieces) {
      EXPECT_GE(p.begin, end) << "in order of addresses";
      end = p.begin + p.bytes;
      double own = 0;
      for (const drawn_piece::part &part : p.parts) {
        if (part.row != in_row) x = 0;
        EXPECT_GE(part.row, in_row);
        in_row = part.row;
        EXPECT_GE(part.x, x - 1e-6);
        x = part.x + part.width;
        EXPECT_LE(x, width + 1e-6);
        own += part.width;
      }
      if (p.color == paint::gap) {
        gaps += own;
        continue;
      }
      EXPECT_NEAR(own, width * static_cast<double>(p.bytes) / static_cast<double>(row), 1e-5);
      area += own;
      memory += p.bytes;
      live += p.live;
      pieces += p.pieces;
    }
    EXPECT_EQ(memory, f.committed);
    EXPECT_EQ(live, f.live);
    EXPECT_NEAR(area, width * static_cast<double>(f.committed) / static_cast<double>(row), 1e-3);
    EXPECT_LT(gaps, 0.2 * area);
    EXPECT_EQ(d.rows, in_row + 1);
    std::uint64_t with_memory = 0;
    for (const heap_extent &s : a.extents) with_memory += has_memory(s.part) ? 1u : 0u;
    EXPECT_EQ(pieces, with_memory);
  }
}

TEST(HeapLayout, WhatIsTooSmallIsDrawnTogetherInTheColourOfMost) {
  heap_map::arena a;
  for (std::uint64_t i = 0; i < 100; ++i) {
    heap_extent s;
    s.range = {device_address(1_GiB + i * 1_MiB), 1_MiB};
    s.part = i % 4 == 0 ? heap_part::free : heap_part::live;
    a.extents.push_back(s);
  }
  const drawn_arena d = lay_out(a, 100, 2_GiB);  // 20 MiB a pixel
  ASSERT_EQ(d.pieces.size(), 5u);
  EXPECT_EQ(d.pieces[0].color, paint::live_0);
  std::uint64_t pieces = 0;
  for (const drawn_piece &p : d.pieces) pieces += p.pieces;
  EXPECT_EQ(pieces, 100u);
}

TEST(HeapLayout, BlocksHaveColoursBySize) {
  heap_extent s;
  s.part = heap_part::live;
  const std::pair<std::size_t, paint> known[] = {
      {512, paint::live_0},     {1_MiB, paint::live_0},   {1_MiB + 512, paint::live_1},
      {64_MiB, paint::live_2},  {512_MiB, paint::live_3}, {512_MiB + 1, paint::live_4},
      {100_GiB, paint::live_4},
  };
  for (const auto &[bytes, color] : known) {
    s.range.bytes = bytes;
    EXPECT_EQ(paint_of(s), color) << bytes;
  }
  s.part = heap_part::cached;
  EXPECT_EQ(paint_of(s), paint::free);
  s.part = heap_part::aliased;
  EXPECT_EQ(paint_of(s), paint::gap);
}

TEST(HeapLayout, NothingIsNoRow) {
  EXPECT_EQ(lay_out({}, 100, 1_MiB).rows, 0u);
  heap_map::arena empty;
  heap_extent s;
  s.range = {device_address(1_GiB), 1_GiB};
  empty.extents = {s};
  EXPECT_EQ(lay_out(empty, 100, 1_MiB).rows, 0u);
  EXPECT_EQ(row_bytes_for(40_GiB, 40), 1_GiB);
  EXPECT_GE(row_bytes_for(0, 0), 1u);
}

// Every tag is closed in order, and no text brings one along. Returns how many <rect>.
std::size_t rectangles(const std::string &svg) {
  std::vector<std::string> open;
  std::size_t rects = 0;
  for (std::size_t i = svg.find('<'); i != std::string::npos; i = svg.find('<', i + 1)) {
    const std::size_t end = svg.find('>', i);
    if (end == std::string::npos) {
      ADD_FAILURE() << "a tag does not end";
      break;
    }
    const std::string tag = svg.substr(i + 1, end - i - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag[0] == '/') {
      EXPECT_FALSE(open.empty());
      if (open.empty()) break;
      EXPECT_EQ(open.back(), tag.substr(1));
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    if (name == "rect") ++rects;
  }
  EXPECT_TRUE(open.empty());
  return rects;
}

heap_picture sample() {
  heap_picture p;
  p.title = "A <title> & \"more\"";
  heap_column &c = p.columns.emplace_back();
  c.title = "ours";
  c.map.page_bytes = 2_MiB;
  c.map.arenas.push_back(random_arena(3));
  c.map.arenas.back().name = "stream <0>";
  c.capacity = 100_GiB;
  return p;
}

TEST(HeapPicture, SaysWhatItShows) {
  const heap_picture p = sample();
  const std::string svg = to_svg(p).value();
  EXPECT_GT(rectangles(svg), 100u);
  const heap_figures f = figures_of(p.columns[0].map);
  const auto &segments = p.columns[0].map.arenas[0].extents;
  const auto large = std::find_if(segments.begin(), segments.end(), [](const heap_extent &x) {
    return x.part == heap_part::live && x.range.bytes > 100_MiB;
  });
  ASSERT_NE(large, segments.end());
  for (const std::string &said :
       {format_bytes(f.live) + " live in " + format_count(f.blocks) + " blocks",
        format_bytes(f.committed) + " committed", std::string("100 GiB may be committed"),
        format_bytes(f.largest_free), format_bytes(f.free_whole_pages) + " of it whole pages",
        format_bytes(f.page_edges) + " edges of pages", std::string("stream &lt;0&gt;"),
        std::string("A &lt;title&gt; &amp; &quot;more&quot;"),
        std::string("freed, other streams still use it"), text::hex(large->range.begin.value())}) {
    EXPECT_NE(svg.find(said), std::string::npos) << said;
  }
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  EXPECT_EQ(svg.find("http", svg.find("xmlns") + 30), std::string::npos) << "nothing is loaded";
}

TEST(HeapPicture, ShowsAFailureBesideOneThatServed) {
  heap_picture p = sample();
  p.columns.push_back(p.columns[0]);
  heap_column &failed = p.columns[1];
  failed.title = "theirs";
  failed.note = "OUT OF MEMORY";
  const heap_figures f = figures_of(failed.map);
  failed.capacity = f.committed;
  failed.wanted = (f.free + f.cached) / 2;
  ASSERT_GT(failed.wanted, f.largest_free);
  std::string svg = to_svg(p).value();
  rectangles(svg);
  EXPECT_NE(svg.find("requested: " + format_bytes(failed.wanted)), std::string::npos);
  EXPECT_NE(svg.find("Enough, but in pieces"), std::string::npos);
  failed.wanted = 500_GiB;
  svg = to_svg(p).value();
  EXPECT_EQ(svg.find("Enough"), std::string::npos);
}

TEST(HeapPicture, IsAPageToo) {
  heap_picture p = sample();
  const std::string html = to_html(p).value();
  EXPECT_EQ(html.rfind("<!DOCTYPE html>", 0), 0u);
  EXPECT_NE(html.find(to_svg(p).value()), std::string::npos);
  EXPECT_EQ(html.find("src="), std::string::npos) << "nothing is loaded";
}

TEST(HeapPicture, IsAsWideWithoutAColumnAsWithOne) {
  heap_picture p = sample();
  const auto view = [&] {
    const std::string svg = to_svg(p).value();
    rectangles(svg);
    const std::size_t from = svg.find("viewBox=\"") + 9;
    return svg.substr(from, svg.find(' ', svg.find(' ', svg.find(' ', from) + 1) + 1) - from);
  };
  const std::string with_one = view();
  p.columns.clear();
  EXPECT_EQ(view(), with_one);
}

TEST(ReportText, AddressesAreHexadecimal) {
  EXPECT_EQ(text::hex(0), "0x0");
  EXPECT_EQ(text::hex(UINT64_MAX), "0xffffffffffffffff");
}

}  // namespace
}  // namespace stillmap
