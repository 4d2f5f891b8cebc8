// All reports of one fixed heap, compared with golden files.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "stillmap/allocators/report/heap_picture.h"
#include "stillmap/allocators/report/heap_report.h"
#include "tests/support/golden.h"

namespace stillmap {
namespace {

using namespace literals;

constexpr std::uint64_t first_block = 0x7000000000, second_block = 0x7100000000;

struct extent_plan {
  std::size_t bytes;
  heap_part part;
  std::size_t requested = 0;
  bool in_slab = false;
};

heap_map::arena arena_of(std::uint64_t at, std::initializer_list<extent_plan> plans) {
  heap_map::arena a;
  const std::uint64_t begin = at;
  for (const extent_plan &p : plans) {
    heap_extent e;
    e.range = {device_address(at), p.bytes};
    e.part = p.part;
    e.requested = p.requested;
    e.in_slab = p.in_slab;
    a.extents.push_back(e);
    at += p.bytes;
  }
  a.reserved.push_back({device_address(begin), at - begin});
  return a;
}

// Two arenas with every part: small pieces, pieces of several rows, segments that end beside
// addresses without memory, and a private pool.
heap_map sample_map() {
  heap_map m;
  m.page_bytes = 2_MiB;
  m.arenas.push_back(arena_of(first_block, {{512, heap_part::live, 500, true},
                                            {2_MiB - 512, heap_part::free},
                                            {6_MiB, heap_part::live, 6_MiB - 100},
                                            {4_MiB, heap_part::cached},
                                            {1_MiB, heap_part::pending_free},
                                            {3_MiB, heap_part::free},
                                            {2_MiB, heap_part::aliased},
                                            {2_MiB, heap_part::unmapping},
                                            {300_MiB, heap_part::live, 300_MiB},
                                            {40_MiB, heap_part::uncommitted}}));
  m.arenas.push_back(arena_of(second_block, {{2_MiB, heap_part::live, 2_MiB},
                                             {4_MiB, heap_part::uncommitted},
                                             {8_MiB, heap_part::free},
                                             {10_MiB, heap_part::live, 10_MiB}}));
  m.arenas[0].id = 1;
  m.arenas[1].id = 2;
  m.arenas[1].pool = 7;
  m.arenas[1].name = "graph <7>";
  return m;
}

caching_allocator_stats sample_stats() {
  caching_allocator_stats s;
  std::size_t n = 1001;
  arena_stats &t = s.total;
  for (std::size_t *const figure :
       {&t.live, &t.live_peak, &t.requested, &t.blocks, &t.pending_free, &t.committed, &t.reserved,
        &t.aliased, &t.cached, &t.free_whole_pages, &t.page_edges, &s.committed_peak,
        &s.created_ahead, &s.host_bytes}) {
    *figure = n++;
  }
  for (std::uint64_t *const figure :
       {&t.allocations, &t.frees, &s.growths, &s.pages_created, &s.pages_moved, &s.pages_recalled,
        &s.pages_released, &s.host_waits, &s.out_of_memory}) {
    *figure = n++;
  }
  return s;
}

heap_snapshot sample_snapshot() {
  heap_snapshot s;
  s.device = "A \"device\"";
  s.map = sample_map();
  s.stats = sample_stats();
  s.history.options.events = 16;
  s.history.options.stack_depth = 2;
  s.history.recorded = 20;
  s.history.lost = 9;
  for (std::size_t i = 0; i < history_actions; ++i) {
    history_event e;
    e.action = static_cast<history_action>(i);
    e.time_ns = 1'700'000'000'000'000'000 + i * 1500;
    e.address = first_block + i * 2_MiB;
    e.bytes = 1000 + i;
    e.usable = 1024 + i;
    e.from = second_block + i * 2_MiB;
    e.available = 5_MiB + i;
    // Stacks of one or two frames, in no module.
    e.first_frame = s.history.frames.size();
    e.frames = static_cast<std::uint32_t>(i % 3);
    for (std::uint32_t f = 0; f < e.frames; ++f) {
      s.history.frames.push_back(reinterpret_cast<const void *>(16 * std::uintptr_t{f + 1}));
    }
    s.history.events.push_back(e);
  }
  return s;
}

// Bytes as printable text, 96 columns a line.
std::string printable(const std::string &bytes) {
  std::string out;
  std::size_t column = 0;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    char text[8];
    std::snprintf(text, sizeof text, byte < ' ' || byte > '~' || byte == '\\' ? "\\%02x" : "%c",
                  byte);
    out += text;
    column += std::string(text).size();
    if (column >= 96) out += '\n', column = 0;
  }
  return out + '\n';
}

class golden_report : public ::testing::Test {
 protected:
  static constexpr const char *folder = "tests/allocators/report/golden/";
  void SetUp() override {
    if (!std::filesystem::exists(folder)) GTEST_SKIP() << "the golden files are not packed";
  }
  static void expect_report(const std::string &file, const std::string &text) {
    testing::expect_golden(folder + file, text);
  }
};

TEST_F(golden_report, json) {
  expect_report("heap.json", to_json(sample_snapshot()).value());
}

TEST_F(golden_report, torch_pickle) {
  expect_report("heap.pickle.txt", printable(to_torch_pickle(sample_snapshot()).value()));
}

TEST_F(golden_report, picture_of_one_heap) {
  heap_picture p;
  p.title = "One heap";
  p.subtitle = "at its peak";
  p.columns.push_back({"stillmap", "", sample_map(), 1_GiB, 0});
  expect_report("one_heap.svg", to_svg(p).value());
}

TEST_F(golden_report, picture_of_heaps_side_by_side) {
  heap_picture p;
  p.title = "Three heaps";
  p.columns.push_back({"stillmap", "at the peak", sample_map(), 400_MiB, 0});
  p.columns.push_back({"segments", "OUT OF MEMORY", sample_map(), 400_MiB, 12_MiB});
  p.columns.push_back({"pages do not move", "OUT OF MEMORY", sample_map(), 0, 900_MiB});
  p.columns[2].map.page_bytes = 0;
  p.columns[2].map.arenas.pop_back();
  expect_report("three_heaps.svg", to_svg(p).value());
}

}  // namespace
}  // namespace stillmap
