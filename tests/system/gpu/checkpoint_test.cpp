// Suspend and snapshots of memory that kernels, graphs and pointers on the device refer to.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "stillmap/checkpoint/suspend/suspender.h"
#include "stillmap/vmm/base/units.h"
#include "tests/support/captured_graph.h"
#include "tests/system/gpu/kernels.h"

namespace stillmap::testing {
namespace {

using namespace literals;

class checkpoint_under_kernels : public gpu_test {
 protected:
  void SetUp() override {
    gpu_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    std::string name = ::testing::TempDir() + "/stillmap-gpu-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
    gpu_test::TearDown();
  }

  std::string file(const char *name) const { return folder_ / name; }
  growable_buffer tagged(const char *tag, std::size_t pages) const {
    buffer_options options;
    options.tag = tag;
    return zeros(pages, std::move(options));
  }
  std::uint32_t words(const growable_buffer &b) const {
    return static_cast<std::uint32_t>(b.size() / 4);
  }
  // The first and the last word of each page.
  void expect_all(const growable_buffer &b, std::uint32_t value) const {
    for (std::size_t at = 0; at < b.size(); at += page()) {
      ASSERT_EQ(read(b.address() + at), value) << "page " << at / page();
      ASSERT_EQ(read(b.address() + (at + page() - 4)), value) << "page " << at / page();
    }
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(checkpoint_under_kernels, a_graph_replays_on_memory_that_was_suspended) {
  growable_buffer weights = tagged("weights", 5), table = tagged("weights", 1),
                  count = tagged("", 1);
  write(count.address(), words(weights));
  const std::uint64_t last = (weights.address() + (weights.size() - 4)).value();
  ASSERT_TRUE(cu().copy_to_device(table.address(), &last, sizeof last));
  const stream s = make_stream();
  captured_graph graph(dev(), s);
  launch_increment(weights.address(), count.address(), s);
  ASSERT_TRUE(graph.end());
  graph.launch(s);
  auto by = checkpoint::suspender::create(dev());
  ASSERT_TRUE(by) << by.error().message();
  std::uint32_t value = 1;
  for (const checkpoint::backing_store where :
       {checkpoint::backing_store::pinned_host, checkpoint::backing_store::file}) {
    checkpoint::suspend_options how;
    how.store = where;
    const auto slept = (*by)->suspend("weights", how);  // waits for what is queued
    ASSERT_TRUE(slept) << slept.error().message();
    EXPECT_EQ(slept->released.bytes(), 6 * page());
    ASSERT_TRUE((*by)->resume("weights"));
    expect_all(weights, value);
    graph.launch(s);
    ASSERT_TRUE(s.synchronize());
    expect_all(weights, ++value);
  }
  // The pointer that lay in it all the time.
  launch_store_through(table.address(), 77, s);
  ASSERT_TRUE(s.synchronize());
  EXPECT_EQ(read(device_address(last)), 77u);
}

TEST_F(checkpoint_under_kernels, suspending_waits_for_the_kernel_that_runs) {
  growable_buffer b = tagged("busy", 2);
  const stream s = make_stream();
  auto by = checkpoint::suspender::create(dev());
  ASSERT_TRUE(by);
  start_counting(b.address(), 10, s);
  std::atomic<bool> told{false};
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    told = true;
    stop_counting();
  });
  const auto slept = (*by)->suspend("busy");
  EXPECT_TRUE(told) << "it was suspended under a kernel that was running";
  later.join();
  ASSERT_TRUE(slept) << slept.error().message();
  ASSERT_TRUE(s.synchronize()) << "an access fault, were the pages gone";
  ASSERT_TRUE((*by)->resume("busy"));
  EXPECT_GT(read(b.address()), 1u);
}

TEST_F(checkpoint_under_kernels, a_graph_replays_on_memory_that_came_from_a_snapshot) {
  growable_buffer count = tagged("", 1);
  const std::string image = file("task.smi");
  const stream s = make_stream();
  device_address at;
  std::optional<captured_graph> graph;
  {
    growable_buffer weights = tagged("task", 4);
    at = weights.address();
    write(count.address(), words(weights));
    graph.emplace(dev(), s);
    launch_increment(at, count.address(), s);
    ASSERT_TRUE(graph->end());
    for (int i = 0; i < 3; ++i) graph->launch(s);
    const std::vector<std::string> tags{"task"};
    const auto saved = snapshot::save(dev(), tags, image);  // waits for what is queued
    ASSERT_TRUE(saved) << saved.error().message();
    EXPECT_EQ(saved->contents_bytes, 4 * page());
    graph->launch(s);
    ASSERT_TRUE(s.synchronize());
    expect_all(weights, 4);
    ASSERT_TRUE(weights.close({}));
  }
  const auto back = snapshot::restore(dev(), image);  // at the same addresses
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(read(at), 3u);
  graph->launch(s);
  ASSERT_TRUE(s.synchronize());
  for (std::size_t p = 0; p < 4; ++p) {
    EXPECT_EQ(read(at + p * page()), 4u);
    EXPECT_EQ(read(at + (p * page() + page() - 4)), 4u);
  }
}

TEST_F(checkpoint_under_kernels, an_incremental_snapshot_stores_what_a_kernel_has_changed) {
  growable_buffer data = tagged("data", 8), table = tagged("", 1);
  const std::string whole = file("whole.smi"), changed = file("changed.smi");
  const std::vector<std::string> tags{"data"};
  for (std::size_t p = 0; p < 8; ++p)
    put(dev(), data.address() + p * page(), pattern(page(), 1 + p));
  ASSERT_TRUE(snapshot::save(dev(), tags, whole));
  const stream s = make_stream();
  const std::uint64_t element = (data.address() + (5 * page() + page() / 2)).value();
  ASSERT_TRUE(cu().copy_to_device(table.address(), &element, sizeof element));
  launch_store_through(table.address(), 0xfeed, s);
  auto parent = image::reader::open(whole);
  ASSERT_TRUE(parent) << parent.error().message();
  snapshot::save_options how;
  how.image.parent = *parent;
  const auto saved = snapshot::save(dev(), tags, changed, how);
  ASSERT_TRUE(saved) << saved.error().message();
  EXPECT_EQ(saved->stored_bytes, page());
  snapshot::restore_options elsewhere;
  elsewhere.relocate = true;
  const auto back = snapshot::restore(dev(), changed, elsewhere);
  ASSERT_TRUE(back) << back.error().message();
  const device_address there = back->memory.layout().blocks.at(0).range.begin;
  EXPECT_EQ(read(there + (5 * page() + page() / 2)), 0xfeedu);
  EXPECT_TRUE(holds(dev(), there + 4 * page(), page(), 5));
  EXPECT_TRUE(holds(dev(), there + 6 * page(), page(), 7));
}

}  // namespace
}  // namespace stillmap::testing
