// The picture of an address space: its data, and that both renderings show the same.
#include "tools/stillmap/map/picture.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "stillmap/vmm/growable_buffer.h"
#include "tests/support/gpu_test.h"
#include "tools/stillmap/map/ops_script.h"
#include "tools/stillmap/map/scenario.h"

namespace stillmap::tool {
namespace {

constexpr std::uint64_t page = std::uint64_t{2} << 20;

block_record block(std::uint64_t at, std::size_t pages, const char *tag) {
  return {{device_address(at), pages * page}, 1, tag, 7, 0, 0};
}
mapping_record mapped(std::uint64_t at, std::size_t pages,
                      mapping_state state = mapping_state::mapped) {
  mapping_record m;
  m.range = {device_address(at), pages * page};
  m.access = {{on_device(0), access_mode::read_write}};
  m.state = state;
  return m;
}

picture sample() {
  const std::vector<block_record> blocks = {block(100 * page, 40, "a"),
                                            block(200 * page, 4, "b<&>")};
  const std::vector<mapping_record> mappings = {
      mapped(100 * page, 1), mapped(101 * page, 1), mapped(104 * page, 2),
      mapped(106 * page, 1, mapping_state::retiring), mapped(500 * page, 3)};
  picture p = picture_of(blocks, mappings, {}, {});
  p.title = "A \"title\"";
  p.page_bytes = page;
  return p;
}

TEST(Picture, RunsAreJoinedAndGapsAreLeft) {
  const picture p = sample();
  ASSERT_EQ(p.rows.size(), 3u);
  const std::vector<backing_run> expected = {{0, 2 * page, backing::mapped, false},
                                             {4 * page, 2 * page, backing::mapped, false},
                                             {6 * page, page, backing::retiring, false}};
  EXPECT_EQ(p.rows[0].runs, expected);
  EXPECT_EQ(p.rows[0].generation, 7u);
  EXPECT_EQ(p.rows[0].bytes_of(backing::mapped), 4 * page);
  EXPECT_EQ(p.rows[0].bytes_of(backing::nothing), 35 * page);
  EXPECT_EQ(p.rows[0].used_end(), 7 * page);
  EXPECT_TRUE(p.rows[1].runs.empty());
  EXPECT_FALSE(p.rows[2].reservation);  // outside every reservation: a cuMemAlloc
  EXPECT_EQ(p.rows[2].bytes, 3 * page);
}

TEST(Picture, CellsSayTheMostUrgentThingInThem) {
  const picture_row row = sample().rows[0];
  const auto fine = cells_of(row, 8 * page, 8);
  const backing expected[] = {backing::mapped,   backing::mapped, backing::nothing,
                              backing::nothing,  backing::mapped, backing::mapped,
                              backing::retiring, backing::nothing};
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(fine[i].kind, expected[i]) << i;
    EXPECT_EQ(fine[i].full, true) << i;
  }
  const auto coarse = cells_of(row, 40 * page, 5);
  EXPECT_EQ(coarse[0].kind, backing::retiring);
  EXPECT_FALSE(coarse[0].full);
  EXPECT_EQ(coarse[1].kind, backing::nothing);
  // More cells than bytes, and a span of many terabytes.
  EXPECT_EQ(cells_of(row, 3, 80).size(), 80u);
  EXPECT_EQ(cells_of(row, std::uint64_t{1} << 62, 80)[0].kind, backing::retiring);
}

TEST(Picture, ALittleUsedReservationIsEnlarged) {
  picture_row row;
  row.bytes = std::uint64_t{140} << 30;
  EXPECT_EQ(zoom_of(row, page), 0u);  // nothing to show
  row.runs = {{0, std::uint64_t{1} << 30, backing::mapped, false}};
  EXPECT_EQ(zoom_of(row, page), std::uint64_t{1} << 30);
  row.runs = {{0, (std::uint64_t{1} << 30) + page, backing::mapped, false}};
  EXPECT_EQ(zoom_of(row, page), std::uint64_t{5} << 28);
  row.runs = {{0, std::uint64_t{80} << 30, backing::mapped, false}};
  EXPECT_EQ(zoom_of(row, page), 0u);  // plain to see
}

// Columns of a UTF-8 line without escapes.
std::size_t columns(const std::string &line) {
  std::size_t n = 0;
  for (const char c : line) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return n;
}

TEST(Picture, TheTerminalsWidthAndCharactersAreRespected) {
  picture p = sample();
  p.history_name = "history";
  for (std::uint64_t i = 1; i < 300; ++i) p.history.push_back({i, i * page, i});
  for (const int width : {40, 80, 200}) {
    for (const bool utf8 : {false, true}) {
      terminal t;
      t.width = width;
      t.utf8 = utf8;
      const std::string drawn = draw_in_terminal(p, t);
      std::size_t at = 0;
      while (at < drawn.size()) {
        const std::size_t end = drawn.find('\n', at);
        ASSERT_NE(end, std::string::npos);
        const std::string line = drawn.substr(at, end - at);
        EXPECT_LE(columns(line), static_cast<std::size_t>(width)) << line;
        at = end + 1;
      }
      EXPECT_EQ(drawn.find('\x1b'), std::string::npos);  // no colour was promised
      const bool ascii = std::all_of(drawn.begin(), drawn.end(), [](char c) { return c > 0; });
      EXPECT_EQ(ascii, !utf8);
    }
  }
  terminal colourful;
  colourful.colour = true;
  EXPECT_NE(draw_in_terminal(p, colourful).find("\x1b[32m"), std::string::npos);
}

TEST(Picture, TheSvgIsOneBalancedDocument) {
  picture p = sample();
  p.history = {{page, page, 1}, {2 * page, 2 * page, 2}};
  p.copying = {{page, page, 1}, {2 * page, 2 * page, 2}};
  const std::string svg = draw_as_svg(p);
  EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
  EXPECT_NE(svg.find("b&lt;&amp;&gt;"), std::string::npos);
  EXPECT_NE(svg.find("A &quot;title&quot;"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  // Every element that is opened is closed.
  std::vector<std::string> open;
  for (std::size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const std::size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const bool closing = svg[at + 1] == '/';
    const std::size_t from = at + (closing ? 2 : 1);
    const std::string name = svg.substr(from, svg.find_first_of(" >/", from) - from);
    if (closing) {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), name);
      open.pop_back();
    } else if (svg[end - 1] != '/') {
      open.push_back(name);
    }
  }
  EXPECT_TRUE(open.empty());
}

TEST(Picture, AnSvgThatCannotBeWrittenIsSaid) {
  const auto written = write_svg(sample(), "/proc/no/such/folder/map.svg");
  ASSERT_FALSE(written);
  EXPECT_NE(written.error().line.find("/proc/no/such/folder/map.svg"), std::string::npos);
}

// The rest is drawn from real books.
class PictureOfDevice : public testing::device_test {
 protected:
  static const picture_row *named(const picture &p, device_address at) {
    for (const picture_row &r : p.rows) {
      if (r.begin == at.value()) return &r;
    }
    return nullptr;
  }
};

TEST_F(PictureOfDevice, NothingIsReserved) {
  if (IsSkipped()) return;
  const device d = open_device();
  const picture p = picture_of(d, "empty");
  EXPECT_TRUE(p.rows.empty());
  EXPECT_NE(draw_in_terminal(p, terminal{}).find("nothing is reserved"), std::string::npos);
  EXPECT_NE(draw_as_svg(p).find("nothing is reserved"), std::string::npos);
}

TEST_F(PictureOfDevice, AliasesAreSharedAndForksReadOnly) {
  if (IsSkipped()) return;
  const device d = open_device();
  if (!d.capabilities().vmm) GTEST_SKIP() << "this device cannot share pages";
  const std::size_t bytes = d.capabilities().page_bytes;
  buffer_options options;
  options.reserve_bytes = 16 * bytes;
  options.tag = "one";
  auto one = growable_buffer::create(d, options);
  ASSERT_TRUE(one);
  ASSERT_TRUE(one->resize(4 * bytes));
  auto ring = one->alias(bytes, bytes, 2);
  ASSERT_TRUE(ring) << ring.error().message();
  auto two = growable_buffer::create(d, options);
  ASSERT_TRUE(two);
  ASSERT_TRUE(two->resize(2 * bytes));
  auto fork = two->fork();
  ASSERT_TRUE(fork) << fork.error().message();

  const picture p = picture_of(d, "shared");
  ASSERT_EQ(p.rows.size(), 4u);
  const picture_row *row = named(p, one->address());
  ASSERT_NE(row, nullptr);
  EXPECT_EQ(row->name, "one");
  const std::vector<backing_run> expected = {{0, bytes, backing::mapped, false},
                                             {bytes, bytes, backing::shared, false},
                                             {2 * bytes, 2 * bytes, backing::mapped, false}};
  EXPECT_EQ(row->runs, expected);
  const std::vector<backing_run> both = {{0, 2 * bytes, backing::shared, false}};
  ASSERT_NE(named(p, ring->address()), nullptr);
  EXPECT_EQ(named(p, ring->address())->runs, both);
  const std::vector<backing_run> read_only = {{0, 2 * bytes, backing::shared, true}};
  ASSERT_NE(named(p, fork->address()), nullptr);
  EXPECT_EQ(named(p, fork->address())->runs, read_only);
  EXPECT_EQ(named(p, two->address())->runs, read_only);
  EXPECT_EQ(p.pages_in_use, 6 * bytes);  // each page once
}

TEST_F(PictureOfDevice, WhatIsGivenBackUnderWorkRetires) {
  if (IsSkipped()) return;
  if (!on_hostcuda()) GTEST_SKIP() << "only hostcuda's streams can be held";
  const device d = open_device();
  if (!d.capabilities().vmm) GTEST_SKIP() << "this device has no pages to retire";
  auto s = scenario::create(d, 32 * page);
  ASSERT_TRUE(s);
  const auto ops = parse_operations("grow a 8M; hold; shrink a 4M");
  ASSERT_TRUE(ops);
  for (const operation &op : *ops) {
    const auto done = s->perform(op);
    ASSERT_TRUE(done) << done.error().line;
  }
  const picture p = picture_of(d, "retiring");
  ASSERT_EQ(p.rows.size(), 1u);
  EXPECT_EQ(s->name_at(device_address(p.rows[0].begin)), "a");
  EXPECT_EQ(p.rows[0].bytes_of(backing::mapped), 2 * page);
  EXPECT_EQ(p.rows[0].bytes_of(backing::retiring), 2 * page);
  EXPECT_EQ(p.pages_in_use, 2 * page);
  EXPECT_EQ(p.pages_retiring, 2 * page);

  const auto release = parse_operations("release");
  ASSERT_TRUE(s->perform(release->front()));
  const picture after = picture_of(d, "released");
  EXPECT_EQ(after.rows[0].bytes_of(backing::retiring), 0u);
  EXPECT_EQ(after.pool_ready, 2 * page);
}

TEST_F(PictureOfDevice, ARefusedOperationNamesItsPlace) {
  if (IsSkipped()) return;
  const device d = open_device();
  auto s = scenario::create(d, 32 * page);
  ASSERT_TRUE(s);
  const auto ops = parse_operations("hold; release;\ngrow a 4M; decommit nobody 0 2M");
  ASSERT_TRUE(ops);
  ASSERT_TRUE(s->perform((*ops)[2]));
  const auto done = s->perform((*ops)[3]);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().line,
            "line 2, column 12: 'decommit nobody 0 2M': there is no buffer 'nobody' yet");
}

}  // namespace
}  // namespace stillmap::tool
