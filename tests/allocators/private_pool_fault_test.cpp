// Fault injection: fails each driver call that the allocator makes during a capture with a private
// pool, once. The graph is captured and replays, or the request reports why; no memory leaks.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "stillmap/vmm/address_space.h"
#include "tests/allocators/checked_heap.h"
#include "tests/support/buffer_test.h"
#include "tests/support/captured_graph.h"
#include "tests/support/effort.h"
#include "tests/support/op_sequence.h"

namespace stillmap {
namespace {

using testing::captured_graph;
using testing::checked_heap;

struct planned {
  const char *call = nullptr;
  std::uint64_t nth = 0;
  CUresult code = CUDA_SUCCESS;
};

class private_pool_faults : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    STILLMAP_NEEDS_HOSTCUDA();
    if (driver().symbol("cuGraphInstantiate_v2") == nullptr) GTEST_SKIP() << "needs CUDA 11.0";
    expect_unreturnable();
  }

  // `fault_` is counted over all calls that the allocator makes in here. What it makes fail is
  // asked for again.
  template <class Call>
  auto asked(Call call) {
    for (;;) {
      const driver_counts before = counts();
      if (fault_.nth != 0) testing::hostcuda_control::fail(fault_.call, fault_.nth, fault_.code);
      auto outcome = call();
      const driver_counts made = counts() - before;
      for (std::size_t i = 0; i < driver_call_count; ++i) made_.calls[i] += made.calls[i];
      bool met = false;
      if (fault_.nth != 0) {
        testing::hostcuda_control::stop_failing(fault_.call);
        met = testing::hostcuda_control::faults_fired() != 0;
        std::uint64_t n = 0;
        for (std::size_t i = 0; i < driver_call_count; ++i) {
          if (std::string_view(name_of(static_cast<driver_call>(i))) == fault_.call) {
            n = made.calls[i];
          }
        }
        fault_.nth = met ? 0 : fault_.nth - n;
        met_ += met ? 1 : 0;
      }
      if (outcome || !met) {
        EXPECT_TRUE(outcome) << outcome.error().message();
        return outcome;
      }
    }
  }

  // Two graphs of one pool, on a machine where pages have to move; then all of it is let go.
  void capture_and_let_go(const planned &fault) {
    // The same calls every time.
    restart_as(testing::machine_config("memory=256M,schedule=seeded:3").c_str());
    fault_ = fault;
    made_ = {};
    leave_free(24);
    {
      const stream s = make_stream(), t = make_stream(), u = make_stream();
      checked_heap h(dev());
      caching_allocator &heap = h.heap();
      const auto idle = h.allocate(10 * page(), t), other = h.allocate(6 * page(), u);
      ASSERT_TRUE(idle && other);
      ASSERT_TRUE(h.free(*idle));
      h.settle();
      const private_pool p = *asked([&] { return heap.create_pool(); });
      ASSERT_TRUE(asked([&] { return heap.begin_allocate_to_pool(p, s); }));
      {
        captured_graph one(dev(), s);
        const auto a = asked([&] { return heap.allocate(12 * page(), s); });
        const auto b = asked([&] { return heap.allocate(300, s); });
        ASSERT_TRUE(a && b);
        one.fill(*a, 1, 12 * page(), s);
        one.fill(*b, 2, 300, s);
        // Another stream works on, and is used by the capture.
        const auto outside = asked([&] { return heap.allocate(2 * page(), u); });
        ASSERT_TRUE(outside);
        ASSERT_TRUE(asked([&] { return heap.record_use(*outside, s); }));
        ASSERT_TRUE(asked([&] { return heap.record_use(*outside, t); }));
        ASSERT_TRUE(asked([&] { return heap.free(*outside); }));
        ASSERT_TRUE(asked([&] { return heap.free(*a); }));
        ASSERT_TRUE(asked([&] { return heap.empty_cache(); }));
        const auto c = asked([&] { return heap.allocate(6 * page(), s); });
        ASSERT_TRUE(c);
        one.fill(*c, 3, 6 * page(), s);
        ASSERT_TRUE(one.end());
        ASSERT_TRUE(asked([&] { return heap.end_allocate_to_pool(p, s); }));
        one.launch(t);
        ASSERT_TRUE(asked([&] { return heap.free(*b); }));
        ASSERT_TRUE(asked([&] { return heap.free(*c); }));
        ASSERT_TRUE(t.synchronize());
        EXPECT_EQ(testing::get(dev(), at(*c), 1)[0], 3);
        EXPECT_EQ(testing::get(dev(), at(*a) + 11 * page(), 1)[0], 1);
        EXPECT_EQ(testing::get(dev(), at(*b), 1)[0], 2);
        EXPECT_EQ(h.disagreement(), "");
        one.launch(t);
        ASSERT_TRUE(asked([&] { return heap.release_pool(p, {t}); }));
      }
      // A pool after it, on the same stream.
      const private_pool q = *asked([&] { return heap.create_pool(); });
      ASSERT_TRUE(asked([&] { return heap.begin_allocate_to_pool(q, s); }));
      const auto d = asked([&] { return heap.allocate(9 * page(), s); });
      ASSERT_TRUE(d);
      ASSERT_TRUE(asked([&] { return heap.end_allocate_to_pool(q, s); }));
      ASSERT_TRUE(asked([&] { return heap.free(*d); }));
      ASSERT_TRUE(asked([&] { return heap.release_pool(q); }));
      const auto e = h.allocate(16 * page(), u);  // needs what the pools had
      ASSERT_TRUE(e) << e.error().message();
      h.drop_all();
      h.settle();
      ASSERT_TRUE(asked([&] { return heap.empty_cache(); }));
      h.settle();
      EXPECT_TRUE(heap.empty_cache());
      EXPECT_EQ(h.disagreement(), "");
      EXPECT_EQ(heap.stats().total.committed, 0u);
      EXPECT_EQ(heap.stats().total.pending_free, 0u);
    }
    EXPECT_EQ(dev().space().stats().live_mappings, 0u);
    EXPECT_EQ(dev().space().stats().live_blocks, 0u);
  }
  static device_address at(void *block) {
    return device_address(reinterpret_cast<std::uintptr_t>(block));
  }

  planned fault_;
  driver_counts made_{};
  std::uint64_t met_ = 0;
};

TEST_F(private_pool_faults, each_call_of_a_capture_failing_once) {
  capture_and_let_go({});
  if (HasFailure()) return;
  const driver_counts plain = made_;
  for (const driver_call c :
       {driver_call::MemMap, driver_call::MemCreate, driver_call::EventRecord,
        driver_call::ThreadExchangeStreamCaptureMode, driver_call::EventQuery}) {
    EXPECT_GT(plain[c], 0u) << name_of(c);
  }
  const std::uint64_t step = testing::sweep_stride(10);
  std::uint64_t points = 0, turn = 0;
  for (std::size_t i = 0; i < driver_call_count; ++i) {
    const char *const call = name_of(static_cast<driver_call>(i));
    const bool common = std::string_view(call).substr(0, 5) == "cuCtx" ||
                        plain.calls[i] == plain[driver_call::StreamIsCapturing];
    for (std::uint64_t nth = 1; nth <= plain.calls[i]; nth += common ? 7 : 1) {
      if (++turn % step != 0) continue;
      ++points;
      const CUresult code = points % 2 == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
      capture_and_let_go({call, nth, code});
      ASSERT_FALSE(HasFailure()) << call << " #" << nth << " failing with " << code;
    }
  }
  EXPECT_GT(met_, points * 9 / 10) << "of " << points;
  std::printf("note: private pools: %llu calls of one capture failed, one at a time\n",
              static_cast<unsigned long long>(met_));
}

}  // namespace
}  // namespace stillmap
