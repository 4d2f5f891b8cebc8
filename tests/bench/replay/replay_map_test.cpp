// Heap maps written during a replay: which moment they show, and who may read the files.
#include "bench/replay/replay_map.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "bench/replay/import_trace.h"
#include "bench/replay/pickle_reader.h"
#include "bench/replay/replay.h"
#include "stillmap/allocators/trace/trace.h"
#include "tests/support/buffer_test.h"

namespace stillmap::testing {
namespace {

namespace fs = std::filesystem;
using namespace stillmap::literals;
using namespace stillmap::replay;

replay_plan plan_of(const std::string &text, unsigned iterations = 0) {
  const auto read = read_trace("# stillmap-trace v1\n" + text);
  EXPECT_TRUE(read) << (read ? "" : read.error().message());
  auto plan = plan_replay(*read, iterations != 0 ? std::optional(iterations) : std::nullopt);
  EXPECT_TRUE(plan);
  return std::move(*plan);
}

TEST(ReplayMap, ThePeakIsThatOfTheLastIteration) {
  const replay_plan p =
      plan_of("a,0,100,0\ni\na,1,900,0\nf,1\ni\na,2,50,0\na,3,300,0\nf,2\na,4,20,0\n");
  const std::size_t at = peak_of_last_iteration(p);
  ASSERT_LT(at, p.ops.size());
  EXPECT_EQ(p.ops[at].bytes, 300u);
  // A program that ends: nothing is allocated after the last boundary.
  const replay_plan ended = plan_of("a,0,100,0\ni\na,1,900,0\nf,1\ni\nf,0\n");
  const std::size_t before = peak_of_last_iteration(ended);
  ASSERT_LT(before, ended.ops.size());
  EXPECT_EQ(ended.ops[before].bytes, 900u);
  const replay_plan none = plan_of("i\n");
  EXPECT_EQ(peak_of_last_iteration(none), none.ops.size());
}

TEST(ReplayMap, TheEndingSaysWhatIsWritten) {
  EXPECT_EQ(*map_format_of("a/b.svg"), map_format::svg);
  EXPECT_EQ(*map_format_of("b.html"), map_format::html);
  EXPECT_EQ(*map_format_of("b.json"), map_format::json);
  EXPECT_EQ(*map_format_of("b.pickle"), map_format::pickle);
  for (const char *other : {"b", "b.png", "svg", ""}) {
    const auto refused = map_format_of(other);
    ASSERT_FALSE(refused) << other;
    EXPECT_EQ(refused.error().code, errc::invalid_argument);
  }
}

TEST(ReplayMap, ThePictureOfOneAllocatorHasItsName) {
  const named_moment moments[] = {{"segments", 0, false, {}}, {"stillmap", 0, false, {}}};
  EXPECT_EQ(picture_of(std::span(moments).first(1), "trace").title, "Memory of segments");
  EXPECT_EQ(picture_of(moments, "trace").title, "Memory, side by side");
}

TEST(ReplayMap, APictureSaysOfEachAllocatorWhichMomentItShows) {
  replay_moment failed, served;
  failed.oom = true;
  failed.wanted = 3_MiB;
  failed.heap.map.page_bytes = 2_MiB;
  served.wanted = 5;  // of no failure: not shown
  const named_moment moments[] = {
      {"a", 64_MiB, false, failed}, {"b", 32_MiB, true, served}, {"c", 0, false, served}};
  const heap_picture p = picture_of(moments, "the trace");
  EXPECT_EQ(p.subtitle, "the trace");
  ASSERT_EQ(p.columns.size(), 3u);
  EXPECT_EQ(p.columns[0].title, "a");
  EXPECT_EQ(p.columns[0].note, "OUT OF MEMORY: 3 MiB more could not be had");
  EXPECT_EQ(p.columns[0].capacity, 64_MiB);
  EXPECT_EQ(p.columns[0].wanted, 3_MiB);
  EXPECT_EQ(p.columns[0].map.page_bytes, 2_MiB);
  EXPECT_EQ(p.columns[1].note, "served the same request");
  EXPECT_EQ(p.columns[1].capacity, 32_MiB);
  EXPECT_EQ(p.columns[1].wanted, 0u);
  EXPECT_EQ(p.columns[2].note, "at the peak of the last iteration");
}

// Small blocks and large ones, freed in part, on two streams, again and again.
std::string program() {
  std::string text;
  std::uint64_t next = 0;
  const auto allocate = [&](std::size_t bytes, int on) {
    text +=
        "a," + std::to_string(next) + "," + std::to_string(bytes) + "," + std::to_string(on) + "\n";
    return next++;
  };
  const auto free = [&](std::uint64_t id) { text += "f," + std::to_string(id) + "\n"; };
  for (int iteration = 0; iteration < 3; ++iteration) {
    text += "i\n";
    std::vector<std::uint64_t> live;
    for (std::size_t k = 1; k <= 30; ++k) live.push_back(allocate(k * 100'003, k % 5 == 0 ? 1 : 0));
    for (std::size_t k = 0; k < live.size(); k += 2) free(live[k]);
    const std::uint64_t large = allocate(20_MiB + 3, 0);
    const std::uint64_t small = allocate(77, 1);
    for (std::size_t k = 1; k < live.size(); k += 2) free(live[k]);
    free(large);
    free(small);
  }
  return text;
}

class ReplayMapTest : public device_test {
 protected:
  void SetUp() override {
    device_test::SetUp();
    if (IsSkipped()) return;
    if (!on_hostcuda()) GTEST_SKIP() << "needs a small device with an oracle";
    become("memory=256M");
    device_.emplace(open_device());
    if (!device_->capabilities().vmm) GTEST_SKIP() << "needs VMM, which this device does not have";
    folder_ = fs::path(::testing::TempDir()) / ("stillmap_map_" + std::to_string(::getpid()));
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
    device_.reset();
    device_test::TearDown();
  }
  replay_result play(const char *allocator, const replay_plan &plan, replay_options o = {}) {
    o.kind = *find_target(allocator);
    o.map = true;
    auto played = run(*device_, plan, o);
    EXPECT_TRUE(played) << (played ? "" : played.error().message());
    return played ? std::move(*played) : replay_result();
  }
  std::string written(const char *name, std::span<const named_moment> moments) {
    const fs::path file = folder_ / name;
    const auto done = write_map(moments, "test", file.string());
    EXPECT_TRUE(done) << (done ? "" : done.error().message());
    std::ifstream in(file, std::ios::binary);
    std::ostringstream all;
    all << in.rdbuf();
    return all.str();
  }
  std::optional<device> device_;
  fs::path folder_;
};

TEST_F(ReplayMapTest, EveryPolicyShowsWhatIsLiveAtThePeak) {
  const replay_plan plan = plan_of(program());
  for (const char *allocator : {"stillmap", "segments", "segments-expanding"}) {
    SCOPED_TRACE(allocator);
    const replay_result r = play(allocator, plan);
    ASSERT_TRUE(r.moment);
    EXPECT_FALSE(r.moment->oom);
    const heap_figures f = figures_of(r.moment->heap.map);
    EXPECT_EQ(f.blocks, 30u);
    EXPECT_GE(f.live, plan.peak_live_bytes);
    EXPECT_LT(f.live, plan.peak_live_bytes + 30 * 1_MiB);
    EXPECT_LE(f.committed, r.peak_committed_bytes);
    EXPECT_GE(f.committed, f.live);
    EXPECT_EQ(r.moment->op, peak_of_last_iteration(plan));
    bool second = false;
    for (const auto &a : r.moment->heap.map.arenas) {
      const std::string kind = allocator[1] == 'e' ? ", small requests" : "";
      if (a.name != "stream 0" + kind && a.name != "stream 1" + kind) {
        EXPECT_TRUE(a.name == "stream 0, large requests" || a.name == "stream 1, large requests")
            << a.name;
      }
      second = second || a.name.rfind("stream 1", 0) == 0;
      std::uint64_t end = 0, reserved = 0;
      for (const heap_extent &s : a.extents) {
        EXPECT_GE(s.range.begin.value(), end);
        end = s.range.end().value();
        reserved += s.range.bytes;
      }
      for (const virtual_range &v : a.reserved) reserved -= v.bytes;
      EXPECT_EQ(reserved, 0u);
    }
    EXPECT_TRUE(second);
  }
  EXPECT_FALSE(play("direct", plan).moment);
}

TEST_F(ReplayMapTest, WhereItRunsOutIsShownWithTheRequest) {
  // Two segments, each half in use.
  const replay_plan plan = plan_of(
      "a,0,9000000,0\na,1,9000000,0\na,2,9000000,0\na,3,9000000,0\nf,0\nf,2\na,4,30000000,0\n");
  replay_options o;
  o.capacity = 64_MiB;
  const replay_result failed = play("segments", plan, o);
  ASSERT_TRUE(failed.oom && failed.moment && failed.moment->oom);
  EXPECT_EQ(failed.moment->wanted, 30000000u);
  o.look_after = failed.moment->op;
  const replay_result served = play("stillmap", plan, o);
  ASSERT_TRUE(served.moment);
  EXPECT_FALSE(served.oom);
  const heap_figures f = figures_of(served.moment->heap.map);
  EXPECT_EQ(f.blocks, 3u);
  EXPECT_EQ(f.requested, 48000000u);
  const named_moment both[] = {{"stillmap", 64_MiB, true, *served.moment},
                               {"segments", 64_MiB, false, *failed.moment}};
  const std::string svg = written("deep/er/both.svg", both);
  EXPECT_NE(svg.find("OUT OF MEMORY: 28.6 MiB more could not be had"), std::string::npos);
  EXPECT_NE(svg.find("served the same request"), std::string::npos);
  EXPECT_NE(written("both.html", both).find("<!DOCTYPE html>"), std::string::npos);
  const auto refused = write_map(both, "test", (folder_ / "both.json").string());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, errc::invalid_argument);
  fs::create_directories(folder_ / "a.svg");
  const auto folder = write_map(both, "test", (folder_ / "a.svg").string());
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.error().code, std::errc::is_a_directory);
  EXPECT_EQ(folder.error().detail().subject, (folder_ / "a.svg").string());
}

// What PyTorch's viewer is given, read by our own importer: the same requests in the same order.
TEST_F(ReplayMapTest, ThePickleIsTheProgramUpToThePeak) {
  const replay_plan plan = plan_of(program());
  replay_options o;
  o.history = true;
  const replay_result r = play("stillmap", plan, o);
  ASSERT_TRUE(r.moment);
  const named_moment moments[] = {{"stillmap", 0, false, *r.moment}};
  const std::string bytes = written("a.pickle", moments);
  const auto read = pickle::read(bytes);
  ASSERT_TRUE(read) << read.error().message();
  const pickle_value *const segments = read->root().find("segments");
  ASSERT_NE(segments, nullptr);
  std::uint64_t total = 0, blocks = 0, active = 0;
  for (const pickle_value *s : segments->items) {
    total += static_cast<std::uint64_t>(s->find("total_size")->integer);
    std::int64_t at = s->find("address")->integer;
    for (const pickle_value *b : s->find("blocks")->items) {
      EXPECT_EQ(b->find("address")->integer, at);
      at += b->find("size")->integer;
      blocks += b->find("state")->text == "active_allocated" ? 1u : 0u;
      active += static_cast<std::uint64_t>(b->find("requested_size")->integer);
    }
    EXPECT_EQ(at, s->find("address")->integer + s->find("total_size")->integer);
  }
  const heap_figures f = figures_of(r.moment->heap.map);
  EXPECT_EQ(total, f.committed);
  EXPECT_EQ(blocks, f.blocks);
  EXPECT_EQ(active, f.requested);

  const auto text = import_torch_snapshot("a.pickle", bytes);
  ASSERT_TRUE(text) << text.error().message();
  const auto again = read_trace(text->front().text);
  ASSERT_TRUE(again);
  std::vector<std::uint64_t> expected, found;
  for (std::size_t i = 0; i <= r.moment->op; ++i) {
    if (plan.ops[i].verb == trace_verb::allocate) expected.push_back(plan.ops[i].bytes);
    if (plan.ops[i].verb == trace_verb::free) expected.push_back(0);
  }
  for (const auto &op : again->events) {
    if (op.verb == trace_verb::allocate) found.push_back(op.bytes);
    if (op.verb == trace_verb::free) found.push_back(0);
  }
  EXPECT_EQ(found, expected);
}

// The reader that it is made for replays the events backwards from the segments at the end: every
// page and every block has to be there then, and at the begin nothing is left.
TEST_F(ReplayMapTest, ThePickleGoesBackToNothing) {
  if (std::system("python3 -c 'import pickle' >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "there is no python3 to read it with";
  }
  // Every other block goes, and one larger than any gap comes: pages move.
  std::string text;
  for (int k = 0; k < 12; ++k) text += "a," + std::to_string(k) + ",4194304,0\n";
  for (int k = 0; k < 12; k += 2) text += "f," + std::to_string(k) + "\n";
  const replay_plan plan = plan_of(text + "i\ni\na,12,22000000,0\na,13,100,1\n");
  replay_options o;
  o.history = true;
  o.capacity = 52_MiB;
  const replay_result r = play("stillmap", plan, o);
  ASSERT_TRUE(r.moment);
  EXPECT_TRUE(
      std::any_of(r.moment->heap.history.events.begin(), r.moment->heap.history.events.end(),
                  [](const history_event &e) { return e.action == history_action::page_move; }));
  const named_moment moments[] = {{"stillmap", 0, false, *r.moment}};
  written("a.pickle", moments);
  std::ofstream(folder_ / "back.py") << R"(
import pickle, sys
d = pickle.load(open(sys.argv[1], 'rb'))
page = 2 << 20
pages, blocks = set(), {}
for s in d['segments']:
    for at in range(s['address'] // page, (s['address'] + s['total_size']) // page):
        pages.add(at)
    for b in s['blocks']:
        if b['state'] != 'inactive': blocks[b['address']] = b['size']
for e in reversed(d['device_traces'][0]):
    what = range(e['addr'] // page, (e['addr'] + e['size']) // page) if 'addr' in e else ()
    if e['action'] == 'segment_map':
        for at in what: pages.remove(at)
    elif e['action'] == 'segment_unmap':
        for at in what:
            assert at not in pages, e
            pages.add(at)
    elif e['action'] == 'alloc': del blocks[e['addr']]
    elif e['action'] == 'free_requested': assert e['addr'] in blocks, e
    elif e['action'] == 'free_completed':
        assert e['addr'] not in blocks, e
        blocks[e['addr']] = e['size']
assert not pages and not blocks, (len(pages), len(blocks))
)";
  const std::string line =
      "python3 '" + (folder_ / "back.py").string() + "' '" + (folder_ / "a.pickle").string() + "'";
  EXPECT_EQ(std::system(line.c_str()), 0);
}

}  // namespace
}  // namespace stillmap::testing
