// Devices that cannot map pages: the allocator acquires and frees chunks of one cuMemAlloc each.
#include <gtest/gtest.h>

#include <cuda.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "stillmap/allocators/shared_quota.h"
#include "stillmap/vmm/address_space.h"
#include "tests/allocators/checked_heap.h"
#include "tests/support/buffer_test.h"
#include "tests/support/hostcuda_control.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using namespace literals;
using testing::checked_heap;
using testing::fails_with;
using testing::outcome;

class chunks : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (has_vmm()) GTEST_SKIP() << "about devices that cannot map pages; this one can";
  }
  std::uint64_t made(const driver_counts &since) const {
    return (counts() - since)[driver_call::MemAlloc];
  }
  std::uint64_t freed(const driver_counts &since) const {
    return (counts() - since)[driver_call::MemFree];
  }
  std::size_t held() const { return dev().space().stats().physical.bytes(); }
};

TEST_F(chunks, are_shared_by_small_blocks_and_made_to_measure_for_large_ones) {
  checked_heap h(dev());
  const stream s = make_stream();
  const driver_counts before = counts();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(h.allocate(700, s));
  EXPECT_EQ(made(before), 1u);
  const std::size_t small = held();
  EXPECT_LE(small, 4_MiB) << "a program with small blocks alone is a small program";
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(h.allocate(5_MiB, s));
  EXPECT_EQ(made(before), 2u);
  const std::size_t shared = held();
  EXPECT_LE(shared - small, 2 * 20_MiB);
  ASSERT_TRUE(h.allocate(31_MiB, s));
  EXPECT_EQ(made(before), 3u);
  EXPECT_GE(held() - shared, 31_MiB);
  EXPECT_LE(held() - shared, 31_MiB + page());
  EXPECT_EQ(h.heap().stats().total.committed, held());
  EXPECT_EQ(h.heap().stats().total.reserved, held());
  EXPECT_EQ(h.heap().map()->arenas[0].reserved.size(), 3u);
  EXPECT_EQ(h.disagreement(), "");
  h.drop_all();
}

TEST_F(chunks, have_the_size_for_their_first_request) {
  // A block of 32 MiB has a chunk of its own; where it is shared, others have room in it, but never
  // more than 32 MiB.
  const std::pair<std::size_t, bool> requests[] = {
      {1_KiB, true}, {64_KiB, true}, {2_MiB, true}, {32_MiB, false}};
  const stream s = make_stream();
  for (const auto &[request, shares] : requests) {
    checked_heap h(dev());
    ASSERT_TRUE(h.allocate(request, s));
    EXPECT_GE(held(), shares ? 2 * request : request) << request;
    EXPECT_LE(held(), 32_MiB) << request;
    h.drop_all();
  }
}

TEST_F(chunks, are_no_larger_than_needed_above_the_soft_limit) {
  checked_heap h(dev());
  h.heap().set_soft_limit(30_MiB);
  const stream s = make_stream();
  ASSERT_TRUE(h.allocate(5_MiB, s));
  const std::size_t first = held();
  EXPECT_GE(first, 2 * 5_MiB) << "room for others";
  EXPECT_LE(first, 30_MiB);
  for (int i = 0; i < 8 && held() == first; ++i) ASSERT_TRUE(h.allocate(5_MiB, s));
  EXPECT_GE(held() - first, 5_MiB);
  EXPECT_LE(held() - first, 5_MiB + page()) << "whole pages, and no room for others";
  h.drop_all();
}

TEST_F(chunks, go_back_whole_and_only_when_asked) {
  checked_heap h(dev());
  const stream s = make_stream();
  const auto stays = h.allocate(100_KiB, s), goes = h.allocate(40_MiB, s);
  const auto other = h.allocate(30_MiB, s);
  ASSERT_TRUE(stays && goes && other);
  const driver_counts before = counts();
  ASSERT_TRUE(h.free(*goes) && h.free(*other));
  EXPECT_EQ(freed(before), 0u);
  const auto some = h.heap().trim(40_MiB);
  ASSERT_TRUE(some);
  EXPECT_EQ(some->released, 30_MiB) << "the one that is enough";
  EXPECT_FALSE(h.heap().owns(*other));
  EXPECT_TRUE(h.heap().owns(*goes));
  ASSERT_TRUE(h.heap().empty_cache());
  EXPECT_GE(held(), 100_KiB) << "what is used in part stays";
  EXPECT_LT(held(), 30_MiB);
  EXPECT_EQ(freed(before), 2u);
  const caching_allocator_stats counted = h.heap().stats();
  EXPECT_EQ((counted.pages_created - counted.pages_released) * page(), held());
  EXPECT_FALSE(h.heap().free(*goes)) << "it is no block, and no address of ours any more";
  EXPECT_FALSE(h.heap().usable_size(*goes));
  EXPECT_EQ(h.disagreement(), "");
  ASSERT_TRUE(h.allocate(40_MiB, s)) << "and can be had again";
  h.drop_all();
}

TEST_F(chunks, of_another_stream_go_back_when_memory_is_short) {
  caching_allocator_options o;
  o.limit = 64_MiB;
  checked_heap h(dev(), o);
  const stream s = make_stream(), t = make_stream();
  const auto first = h.allocate(48_MiB, s);
  ASSERT_TRUE(first);
  EXPECT_TRUE(fails_with(outcome(h.allocate(32_MiB, t)), errc::out_of_memory,
                         "caching_allocator::allocate", 32_MiB, 64_MiB));
  ASSERT_TRUE(h.free(*first));
  ASSERT_TRUE(h.allocate(32_MiB, t)) << "as soon as nobody uses it";
  EXPECT_EQ(held(), 32_MiB);
  EXPECT_EQ(h.heap().stats().total.committed, 32_MiB);
  EXPECT_EQ(h.heap().stats().pages_moved, 0u);
  EXPECT_EQ(h.disagreement(), "");
  h.drop_all();
}

// The work queued on their stream comes first, though its stream is one that cuMemFree does not
// wait for.
TEST_F(chunks, that_queued_work_touches_are_waited_for) {
  STILLMAP_NEEDS_HOSTCUDA();
  caching_allocator_options o;
  o.limit = 64_MiB;
  checked_heap h(dev(), o);
  const stream s = make_stream(), t = make_stream();
  for (int round = 0; round < 4; ++round) {
    const auto busy = h.allocate(48_MiB, round % 2 == 0 ? s : t);
    ASSERT_TRUE(busy) << busy.error().message();
    ASSERT_TRUE(h.free(*busy));  // reads it first, on its stream
  }
  h.settle();
  EXPECT_EQ(h.disagreement(), "");
  EXPECT_EQ(held(), 48_MiB);
}

TEST_F(chunks, of_the_stream_itself_go_back_when_they_are_too_small) {
  caching_allocator_options o;
  o.limit = 64_MiB;
  checked_heap h(dev(), o);
  const stream s = make_stream();
  std::vector<void *> small;
  for (int i = 0; i < 4; ++i) small.push_back(*h.allocate(16_MiB, s));
  for (void *b : small) ASSERT_TRUE(h.free(b));
  ASSERT_TRUE(h.allocate(64_MiB, s));
  EXPECT_EQ(held(), 64_MiB);
  EXPECT_EQ(h.disagreement(), "");
  h.drop_all();
}

TEST_F(chunks, a_full_device_is_said_so_and_what_is_unused_is_found) {
  STILLMAP_NEEDS_HOSTCUDA();
  checked_heap h(dev());
  const stream s = make_stream();
  leave_free(24);
  const auto first = h.allocate(16 * page(), s);
  ASSERT_TRUE(first);
  const auto over = h.allocate(9 * page(), s);
  ASSERT_FALSE(over);
  EXPECT_TRUE(over.error().is(errc::out_of_memory)) << over.error().message();
  ASSERT_TRUE(h.allocate(8 * page(), s)) << "no more than is asked for, where no more is there";
  const auto none = h.allocate(512, s);
  EXPECT_FALSE(none) << "to the last page";
  ASSERT_TRUE(h.free(*first));
  ASSERT_TRUE(h.allocate(9 * page(), s));
  EXPECT_EQ(h.disagreement(), "");
  h.drop_all();
  testing::hostcuda_control::occupy(0, 0);
}

TEST_F(chunks, beyond_the_soft_limit_unused_ones_go_first) {
  caching_allocator_options o;
  o.soft_limit = 64_MiB;
  checked_heap h(dev(), o);
  const stream s = make_stream(), t = make_stream();
  const auto first = h.allocate(48_MiB, s);
  ASSERT_TRUE(first);
  ASSERT_TRUE(h.allocate(48_MiB, t)) << "it is no limit";
  EXPECT_EQ(held(), 96_MiB);
  ASSERT_TRUE(h.free(*first));
  h.settle();
  ASSERT_TRUE(h.allocate(50_MiB, t));
  EXPECT_EQ(held(), 98_MiB);
  h.drop_all();
}

// The soft limit is not worth a wait.
TEST_F(chunks, of_a_busy_stream_stay_beyond_the_soft_limit) {
  caching_allocator_options o;
  o.soft_limit = 64_MiB;
  checked_heap h(dev(), o);
  const stream s = make_stream(), t = make_stream();
  const auto first = h.allocate(48_MiB, s);
  ASSERT_TRUE(first);
  testing::hold(s.get());
  ASSERT_TRUE(h.free(*first));  // reads it first, on its stream
  auto second = std::async(std::launch::async, [&] { return h.heap().allocate(50_MiB, t); });
  EXPECT_EQ(second.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_EQ(held(), 98_MiB);
  testing::release(s.get());
  const auto block = second.get();
  ASSERT_TRUE(block) << block.error().message();
  EXPECT_TRUE(h.heap().free(*block));
  h.settle();
}

// An event takes time, so only streams with chunks to free are asked whether they are idle.
TEST_F(chunks, of_streams_with_none_unused_are_not_looked_for) {
  caching_allocator_options o;
  o.soft_limit = 32_MiB;
  const auto heap = std::move(*caching_allocator::create(dev(), o));
  const stream s = make_stream(), t = make_stream(), u = make_stream();
  ASSERT_TRUE(heap->allocate(48_MiB, s));
  const auto unused = heap->allocate(40_MiB, t);
  ASSERT_TRUE(unused);
  ASSERT_TRUE(heap->free(*unused));
  driver_counts before = counts();
  ASSERT_TRUE(heap->allocate(50_MiB, u));
  EXPECT_EQ((counts() - before)[driver_call::EventRecord], 2u)
      << "whether t is idle, which has an unused chunk; and behind the uses of that";
  before = counts();
  ASSERT_TRUE(heap->allocate(50_MiB, u));
  EXPECT_EQ((counts() - before)[driver_call::EventRecord], 0u);
}

// A loop whose shapes alternate: everything is had again without the driver, and nothing goes back.
TEST_F(chunks, stay_in_a_steady_loop) {
  checked_heap h(dev());
  const stream s = make_stream(), t = make_stream();
  const auto step = [&](std::size_t unit) {
    std::vector<void *> blocks;
    for (std::size_t i = 1; i <= 12; ++i) {
      blocks.push_back(*h.heap().allocate(i * unit, i % 3 == 0 ? t : s));
    }
    for (void *b : blocks) ASSERT_TRUE(h.heap().free(b));
  };
  for (int i = 0; i < 2; ++i) {
    step(700_KiB);
    step(3_MiB);
  }
  const driver_counts before = counts();
  for (int i = 0; i < 10; ++i) {
    step(700_KiB);
    step(3_MiB);
  }
  EXPECT_EQ((counts() - before).total(), 0u);
}

TEST_F(chunks, what_the_driver_would_not_take_back_is_used_on) {
  STILLMAP_NEEDS_HOSTCUDA();
  checked_heap h(dev());
  const stream s = make_stream();
  const auto block = h.allocate(40_MiB, s);
  ASSERT_TRUE(block);
  ASSERT_TRUE(h.free(*block));
  h.settle();
  testing::hostcuda_control::fail("cuMemFree", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(h.heap().empty_cache());
  EXPECT_EQ(held(), 40_MiB);
  EXPECT_TRUE(h.heap().owns(*block));
  EXPECT_EQ(h.disagreement(), "");
  const driver_counts before = counts();
  ASSERT_TRUE(h.allocate(30_MiB, s));
  EXPECT_EQ(made(before), 0u);
  h.drop_all();
  ASSERT_TRUE(h.heap().empty_cache());
  EXPECT_EQ(held(), 0u);
}

// CUDA promises that memory is aligned for any type, not that it begins at a page.
TEST_F(chunks, begin_at_a_page_wherever_the_driver_has_room) {
  STILLMAP_NEEDS_HOSTCUDA();
  const context_guard guard(driver(), dev().context());
  const auto take = [&](std::size_t bytes) { return *driver().allocate(bytes); };
  // A hole of 8 MiB that begins 512 bytes after a page, and nothing else that large.
  const device_address large = take(8_MiB + 512), rest = take(2_MiB - 512);
  ASSERT_EQ(rest, large + (8_MiB + 512));
  ASSERT_TRUE(driver().free(large));
  const device_address small = take(512);
  ASSERT_EQ(small, large);
  {
    caching_allocator_options o;
    o.limit = 10_MiB;
    const std::string path =
        ::testing::TempDir() + "stillmap-chunk-page-quota-" + std::to_string(getpid());
    const auto quota = shared_quota::open(path, {.limit = 1_GiB});
    ASSERT_TRUE(quota && shared_quota::remove(path));
    o.quota = *quota;
    checked_heap h(dev(), o);
    const stream s = make_stream();
    const auto block = h.allocate(8_MiB, s);
    ASSERT_TRUE(block) << block.error().message();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*block) % page(), 0u);
    EXPECT_EQ(held(), 10_MiB) << "what it costs is counted";
    EXPECT_EQ((*quota)->stats()->own, 10_MiB);
    EXPECT_EQ(h.heap().stats().total.committed, 8_MiB);
    ASSERT_TRUE(h.free(*block));
    h.settle();
    ASSERT_TRUE(h.heap().empty_cache());
    EXPECT_EQ(held(), 0u);
  }
  EXPECT_TRUE(driver().free(small) && driver().free(rest));
}

// A graph replays on them.
TEST_F(chunks, of_a_private_pool_stay_until_it_is_released) {
  caching_allocator_options o;
  o.limit = 64_MiB;
  checked_heap h(dev(), o);
  caching_allocator &heap = h.heap();
  const stream s = make_stream();
  const auto pool = heap.create_pool();
  ASSERT_TRUE(pool && heap.begin_allocate_to_pool(*pool, s));
  const auto captured = heap.allocate(24_MiB, s);
  ASSERT_TRUE(captured && heap.free(*captured));
  ASSERT_TRUE(heap.end_allocate_to_pool(*pool, s));
  h.settle();

  const driver_counts before = counts();
  const auto emptied = heap.empty_cache();
  ASSERT_TRUE(emptied);
  EXPECT_EQ(emptied->released, 0u);
  EXPECT_EQ(emptied->private_pools, 24_MiB);
  heap.set_soft_limit(16_MiB);
  const auto outside = heap.allocate(32_MiB, s);
  ASSERT_TRUE(outside) << outside.error().message();
  const auto too_much = heap.allocate(32_MiB, s);
  EXPECT_FALSE(too_much);
  EXPECT_EQ(freed(before), 0u) << "not for other requests either";

  ASSERT_TRUE(heap.begin_allocate_to_pool(*pool, s));
  EXPECT_EQ(heap.allocate(24_MiB, s).value_or(nullptr), *captured);
  ASSERT_TRUE(heap.free(*captured) && heap.end_allocate_to_pool(*pool, s));
  ASSERT_TRUE(heap.release_pool(*pool));
  h.settle();
  const auto after = heap.empty_cache();
  ASSERT_TRUE(after);
  EXPECT_EQ(after->released, 24_MiB);
  EXPECT_TRUE(heap.free(*outside));
}

// Whatever the mode, growing is not part of the graph and does not spoil it; nothing goes back.
TEST_F(chunks, come_but_do_not_go_while_a_graph_is_captured) {
  const auto begin = reinterpret_cast<CUresult (*)(CUstream, CUstreamCaptureMode)>(
      driver().symbol("cuStreamBeginCapture_v2"));
  const auto end =
      reinterpret_cast<CUresult (*)(CUstream, CUgraph *)>(driver().symbol("cuStreamEndCapture"));
  const auto destroy = reinterpret_cast<CUresult (*)(CUgraph)>(driver().symbol("cuGraphDestroy"));
  ASSERT_TRUE(begin != nullptr && end != nullptr && destroy != nullptr);
  for (const CUstreamCaptureMode mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CU_STREAM_CAPTURE_MODE_RELAXED}) {
    caching_allocator_options o;
    o.limit = 64_MiB;
    checked_heap h(dev(), o);
    caching_allocator &heap = h.heap();
    const stream s = make_stream(), t = make_stream();
    const auto unused = h.allocate(32_MiB, t), captured = h.allocate(1_MiB, s);
    ASSERT_TRUE(unused && captured);
    ASSERT_TRUE(h.free(*unused));
    h.settle();
    const context_guard guard(driver(), dev().context());
    ASSERT_EQ(begin(s.get(), mode), CUDA_SUCCESS);
    const driver_counts before = counts();
    const auto nothing = heap.trim(32_MiB);
    EXPECT_TRUE(nothing) << "nothing would have to go: " << nothing.error().message();
    const auto more = heap.allocate(20_MiB, s);
    EXPECT_TRUE(more) << more.error().message();
    EXPECT_TRUE(heap.allocate(5_MiB, t));
    EXPECT_EQ(made(before), 1u) << "t has room";
    const auto too_much = heap.allocate(40_MiB, s);
    ASSERT_FALSE(too_much);
    EXPECT_TRUE(too_much.error().is(errc::out_of_memory)) << too_much.error().message();
    EXPECT_TRUE(heap.free(*captured));
    EXPECT_TRUE(heap.allocate(12_MiB, t)) << "in what it has";
    EXPECT_FALSE(heap.allocate(40_MiB, t)) << "another stream's request frees nothing either";
    const auto refused = heap.empty_cache();
    EXPECT_FALSE(refused) << "something could have gone";
    EXPECT_EQ(freed(before), 0u);
    CUgraph graph = nullptr;
    EXPECT_EQ(end(s.get(), &graph), CUDA_SUCCESS) << "the capture is as good as ever";
    if (graph != nullptr) {
      EXPECT_EQ(destroy(graph), CUDA_SUCCESS);
    }
  }
}

// Does something on another thread when addresses are reserved, once.
class interrupted_growth final : public heap_observer {
 public:
  std::function<void()> meanwhile;
  bool on_event(const history_event &e) noexcept override {
    if (e.action != history_action::reserve || !meanwhile) return true;
    const auto done = std::make_shared<std::promise<void>>();
    other_ = std::thread([act = std::exchange(meanwhile, nullptr), done] {
      act();
      done->set_value();
    });
    // Where it can take the new chunk it is done at once; else it waits for this growth to end.
    done->get_future().wait_for(std::chrono::milliseconds(200));
    return true;
  }
  void join() { other_.join(); }

 private:
  std::thread other_;
};

TEST_F(chunks, are_not_taken_before_the_request_that_made_them_is_served) {
  const auto growth = std::make_shared<interrupted_growth>();
  caching_allocator_options o;
  o.observer = growth;
  auto heap = caching_allocator::create(dev(), o);
  ASSERT_TRUE(heap);
  const stream s = make_stream();
  result<void *> second = nullptr;
  growth->meanwhile = [&] { second = (*heap)->allocate(31_MiB, s); };
  const auto first = (*heap)->allocate(31_MiB, s);
  growth->join();
  ASSERT_TRUE(first && second);
  EXPECT_NE(*first, *second);
  EXPECT_TRUE((*heap)->free(*first) && (*heap)->free(*second));
}

TEST_F(chunks, are_not_open_to_other_devices) {
  if (dev().capabilities().peers.empty()) GTEST_SKIP() << "needs a peer";
  caching_allocator_options o;
  o.peer_devices = {dev().capabilities().peers.front()};
  EXPECT_TRUE(fails_with(outcome(caching_allocator::create(dev(), o)), errc::not_supported,
                         "caching_allocator::create"));
}

// Regression: the bytes granted for a chunk that the driver did not allocate stayed reserved.
TEST_F(chunks, return_the_grant_of_a_failed_allocation_to_the_quota) {
  STILLMAP_NEEDS_HOSTCUDA();
  const std::string path =
      ::testing::TempDir() + "stillmap-chunk-quota-" + std::to_string(getpid());
  const auto quota = shared_quota::open(path, {.limit = 1_GiB});
  ASSERT_TRUE(quota) << quota.error().message();
  caching_allocator_options options;
  options.quota = *quota;
  checked_heap h(dev(), options);
  const stream s = make_stream();
  testing::hostcuda_control::fail(name_of(driver_call::MemAlloc), 1, CUDA_ERROR_OUT_OF_MEMORY);
  const auto block = h.allocate(31_MiB, s);  // fails once, is tried again
  EXPECT_EQ(testing::hostcuda_control::faults_fired(), 1u);
  testing::hostcuda_control::stop_failing(name_of(driver_call::MemAlloc));
  ASSERT_TRUE(block) << block.error().message();
  EXPECT_EQ((*quota)->stats()->own, held());
  ASSERT_TRUE(h.free(*block));
  ASSERT_TRUE(h.heap().empty_cache());
  EXPECT_EQ((*quota)->stats()->own, 0u);
  EXPECT_TRUE(shared_quota::remove(path));
}

}  // namespace
}  // namespace stillmap
