#include "execution_fixture.h"

#include <algorithm>

namespace hostcuda_tests {
namespace {

using stream_test = machine_test;

TEST_F(stream_test, RunsInOrderWithinAStream) {
  const CUstream s = make_stream();
  journal j;
  note notes[64];
  for (int i = 0; i < 64; ++i) {
    notes[i] = {&j, i};
    ASSERT_EQ(cuLaunchHostFunc(s, write_note, &notes[i]), CUDA_SUCCESS);
  }
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  ASSERT_EQ(j.order.size(), 64U);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(j.order[static_cast<std::size_t>(i)], i);
}

TEST_F(stream_test, ABlockedHostFunctionStopsNoOtherStream) {
  const CUstream a = make_stream();
  const CUstream b = make_stream();
  std::atomic<bool> go{false};
  ASSERT_EQ(cuLaunchHostFunc(
                a,
                [](void *p) {
                  auto *flag = static_cast<std::atomic<bool> *>(p);
                  while (!flag->load()) std::this_thread::yield();
                },
                &go),
            CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchHostFunc(
                b, [](void *p) { static_cast<std::atomic<bool> *>(p)->store(true); }, &go),
            CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
}

TEST_F(stream_test, HoldKeepsWorkPendingUntilReleased) {
  const CUstream s = make_stream();
  journal j;
  note n{&j, 1};
  ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchHostFunc(s, write_note, &n), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(hostcuda_release(s), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(s), CUDA_SUCCESS);
  EXPECT_EQ(j.order.size(), 1U);
}

// A brief copy on an idle stream runs on the calling thread, in stream order.
TEST_F(stream_test, ABriefCopyOnAnIdleStreamRunsAtOnce) {
  const CUstream s = make_stream();
  const std::size_t bytes = 64 << 10;
  const CUdeviceptr at = reserve(2 * MiB);
  map(at, create(2 * MiB), 2 * MiB);
  void *pinned = nullptr;
  ASSERT_EQ(cuMemAllocHost(&pinned, 2 * bytes), CUDA_SUCCESS);
  auto *const from = static_cast<std::uint8_t *>(pinned), *const to = from + bytes;
  std::fill_n(from, bytes, std::uint8_t{7});
  ASSERT_EQ(cuMemcpyHtoDAsync(at, from, bytes, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync(to, at, bytes, s), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(s), CUDA_SUCCESS);
  EXPECT_EQ(to[bytes - 1], 7);

  ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(at, 9, bytes, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync(to, at, bytes, s), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(to[bytes - 1], 7);
  ASSERT_EQ(hostcuda_release(s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(to[bytes - 1], 9);
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
}

// In a seeded schedule it is queued as any other copy, so that a missing wait is visible.
TEST_F(stream_test, ABriefCopyInASeededScheduleIsQueued) {
  start("profile=h200,schedule=seeded:3");
  const CUstream s = make_stream();
  const CUdeviceptr at = reserve(2 * MiB);
  map(at, create(2 * MiB), 2 * MiB);
  void *pinned = nullptr;
  ASSERT_EQ(cuMemAllocHost(&pinned, 4096), CUDA_SUCCESS);
  auto *const bytes = static_cast<std::uint8_t *>(pinned);
  std::fill_n(bytes, 4096, std::uint8_t{7});
  ASSERT_EQ(cuMemsetD8Async(at, 9, 4096, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync(bytes, at, 4096, s), CUDA_SUCCESS);
  EXPECT_EQ(bytes[0], 7);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(bytes[0], 9);
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
}

TEST_F(stream_test, AHandleIsReusedWhileItsFirstStreamHasWork) {
  start("stream_handles=reuse");
  const CUstream gate = make_stream(), s = make_stream();
  CUevent opened = nullptr;
  ASSERT_EQ(cuEventCreate(&opened, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(hostcuda_hold(gate), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(opened, gate), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(s, opened, 0), CUDA_SUCCESS);
  journal j;
  note n{&j, 1};
  ASSERT_EQ(cuLaunchHostFunc(s, write_note, &n), CUDA_SUCCESS);
  unsigned long long first = 0, second = 0;
  ASSERT_EQ(cuStreamGetId(s, &first), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamDestroy(s), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_INVALID_HANDLE);
  const CUstream t = make_stream();
  EXPECT_EQ(t, s);
  ASSERT_EQ(cuStreamGetId(t, &second), CUDA_SUCCESS);
  EXPECT_NE(first, second);
  EXPECT_EQ(cuStreamQuery(t), CUDA_SUCCESS) << "it has none of the other's work";
  EXPECT_TRUE(j.order.empty());
  ASSERT_EQ(hostcuda_release(gate), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(j.order.size(), 1U);
  ASSERT_EQ(cuStreamDestroy(t), CUDA_SUCCESS);
  EXPECT_EQ(hostcuda_reset("stream_handles=old"), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(stream_test, DestroyLetsQueuedWorkFinishAndKillsTheHandle) {
  const CUstream s = make_stream();
  journal j;
  note n{&j, 1};
  ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchHostFunc(s, write_note, &n), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamDestroy(s), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamDestroy(s), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(j.order.size(), 1U);
}

TEST_F(stream_test, SaysWhatItIs) {
  CUstream s = nullptr;
  ASSERT_EQ(cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, -100), CUDA_SUCCESS);
  unsigned flags = 0;
  int priority = 1;
  CUcontext ctx = nullptr;
  unsigned long long id = 0;
  unsigned long long other_id = 0;
  ASSERT_EQ(cuStreamGetFlags(s, &flags), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamGetPriority(s, &priority), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamGetCtx(s, &ctx), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamGetId(s, &id), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamGetId(make_stream(), &other_id), CUDA_SUCCESS);
  EXPECT_EQ(flags, unsigned{CU_STREAM_NON_BLOCKING});
  EXPECT_LE(priority, 0);
  EXPECT_GT(priority, -100);
  EXPECT_EQ(ctx, ctx_);
  EXPECT_NE(id, other_id);
}

TEST_F(stream_test, RefusesBadInput) {
  CUstream s = nullptr;
  EXPECT_EQ(cuStreamCreate(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamCreate(&s, 0x80), CUDA_ERROR_INVALID_VALUE);
  int local = 0;
  const auto foreign = reinterpret_cast<CUstream>(&local);
  EXPECT_EQ(cuStreamQuery(foreign), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamDestroy(foreign), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuLaunchHostFunc(make_stream(), nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(stream_test, CountsLiveStreamsAndEvents) {
  const CUstream s = make_stream();
  const CUevent e = make_event();
  hostcuda_counters c{};
  ASSERT_EQ(hostcuda_get_counters(&c), CUDA_SUCCESS);
  EXPECT_EQ(c.live_streams, 1U);
  EXPECT_EQ(c.live_events, 1U);
  ASSERT_EQ(cuStreamDestroy(s), CUDA_SUCCESS);
  ASSERT_EQ(cuEventDestroy(e), CUDA_SUCCESS);
  ASSERT_EQ(hostcuda_get_counters(&c), CUDA_SUCCESS);
  EXPECT_EQ(c.live_streams, 0U);
  EXPECT_EQ(c.live_events, 0U);
}

TEST_F(stream_test, ACallbackReceivesTheStatusAndMayNotCallTheDriver) {
  const CUstream s = make_stream();
  struct seen {
    CUresult status = CUDA_ERROR_UNKNOWN;
    CUresult nested = CUDA_SUCCESS;
  } got;
  ASSERT_EQ(cuStreamAddCallback(
                s,
                [](CUstream stream, CUresult status, void *p) {
                  auto *out = static_cast<seen *>(p);
                  out->status = status;
                  out->nested = cuStreamSynchronize(stream);
                },
                &got, 0),
            CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(got.status, CUDA_SUCCESS);
  EXPECT_EQ(got.nested, CUDA_ERROR_NOT_PERMITTED);
}

TEST_F(stream_test, AWaitForAValueEndsWhenAnotherStreamWritesIt) {
  const CUdeviceptr at = reserve(2 * MiB);
  map(at, create(2 * MiB), 2 * MiB);
  ASSERT_EQ(cuMemsetD32(at, 0, 1), CUDA_SUCCESS);
  const CUstream a = make_stream();
  const CUstream b = make_stream();
  ASSERT_EQ(cuStreamWaitValue32(a, at, 7, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(a), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(cuStreamWriteValue32(b, at, 7, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
}

TEST_F(stream_test, ManyThreadsShareManyStreams) {
  std::vector<CUstream> streams;
  for (int i = 0; i < 4; ++i)
    streams.push_back(make_stream(i % 2 == 0 ? 0 : CU_STREAM_NON_BLOCKING));
  std::atomic<int> ran{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      ASSERT_EQ(cuCtxSetCurrent(ctx_), CUDA_SUCCESS);
      const CUevent e = make_event();
      for (int i = 0; i < 50; ++i) {
        const CUstream s = streams[static_cast<std::size_t>(i) % streams.size()];
        const CUstream next = streams[static_cast<std::size_t>(i + 1) % streams.size()];
        ASSERT_EQ(cuLaunchHostFunc(
                      s, [](void *p) { static_cast<std::atomic<int> *>(p)->fetch_add(1); }, &ran),
                  CUDA_SUCCESS);
        ASSERT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
        ASSERT_EQ(cuStreamWaitEvent(next, e, 0), CUDA_SUCCESS);
        if (i % 10 == 0) {
          ASSERT_EQ(cuStreamSynchronize(next), CUDA_SUCCESS);
        }
      }
      ASSERT_EQ(cuEventDestroy(e), CUDA_SUCCESS);
    });
  }
  for (auto &t : threads) t.join();
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(ran.load(), 200);
}

}  // namespace
}  // namespace hostcuda_tests
