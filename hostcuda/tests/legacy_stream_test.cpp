#include "execution_fixture.h"

extern "C" CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn fn, void *user);
extern "C" CUresult cuStreamQuery_ptsz(CUstream stream);

namespace hostcuda_tests {
namespace {

using legacy_stream_test = machine_test;

TEST_F(legacy_stream_test, WaitsForBlockingStreams) {
  const CUstream a = make_stream(CU_STREAM_DEFAULT);
  journal j;
  note first{&j, 1};
  note second{&j, 2};
  ASSERT_EQ(hostcuda_hold(a), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchHostFunc(a, write_note, &first), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchHostFunc(nullptr, write_note, &second), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(hostcuda_release(a), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(j.order, (std::vector<int>{1, 2}));
}

TEST_F(legacy_stream_test, HoldsBackBlockingStreamsQueuedLater) {
  const CUstream a = make_stream(CU_STREAM_DEFAULT);
  journal j;
  note first{&j, 1};
  note second{&j, 2};
  ASSERT_EQ(hostcuda_hold(nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchHostFunc(CU_STREAM_LEGACY, write_note, &first), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchHostFunc(a, write_note, &second), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(a), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(hostcuda_release(nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
  EXPECT_EQ(j.order, (std::vector<int>{1, 2}));
}

TEST_F(legacy_stream_test, LeavesNonBlockingStreamsAlone) {
  const CUstream a = make_stream(CU_STREAM_NON_BLOCKING);
  journal j;
  note first{&j, 1};
  ASSERT_EQ(hostcuda_hold(nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchHostFunc(nullptr, write_note, &first), CUDA_SUCCESS);
  note second{&j, 2};
  ASSERT_EQ(cuLaunchHostFunc(a, write_note, &second), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
  EXPECT_EQ(j.order, (std::vector<int>{2}));
  ASSERT_EQ(hostcuda_release(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
}

TEST_F(legacy_stream_test, ASynchronousCopyWaitsForBlockingStreams) {
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAlloc(&at, 4096), CUDA_SUCCESS);
  const CUstream a = make_stream(CU_STREAM_DEFAULT);
  std::vector<unsigned char> got(4096, 0);
  ASSERT_EQ(hostcuda_hold(a), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(at, 0x5A, 4096, a), CUDA_SUCCESS);
  std::thread later([&] { hostcuda_release(a); });
  ASSERT_EQ(cuMemcpyDtoH(got.data(), at, got.size()), CUDA_SUCCESS);
  later.join();
  for (const unsigned char byte : got) ASSERT_EQ(byte, 0x5A);
}

TEST_F(legacy_stream_test, EachThreadHasADefaultStreamOfItsOwn) {
  std::atomic<bool> go{false};
  ASSERT_EQ(cuLaunchHostFunc_ptsz(
                nullptr,
                [](void *p) {
                  while (!static_cast<std::atomic<bool> *>(p)->load()) std::this_thread::yield();
                },
                &go),
            CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery_ptsz(nullptr), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
  std::thread([&] {
    EXPECT_EQ(cuCtxSetCurrent(ctx_), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  }).join();
  // The legacy stream covers the blocking stream.
  EXPECT_EQ(cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
  go.store(true);
  EXPECT_EQ(cuStreamSynchronize(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
}

TEST_F(legacy_stream_test, AThreadMayEndWithWorkInItsDefaultStream) {
  std::atomic<int> ran{0};
  std::thread([&] {
    EXPECT_EQ(cuCtxSetCurrent(ctx_), CUDA_SUCCESS);
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(cuLaunchHostFunc(
                    CU_STREAM_PER_THREAD,
                    [](void *p) { static_cast<std::atomic<int> *>(p)->fetch_add(1); }, &ran),
                CUDA_SUCCESS);
    }
  }).join();
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(ran.load(), 8);
}

TEST_F(legacy_stream_test, DefaultStreamsNeedAContext) {
  ASSERT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_INVALID_CONTEXT);
}

// An operation of the legacy stream follows only what is new on the blocking streams. What an
// earlier one follows, and streams that are destroyed in between, must still come first.
TEST_F(legacy_stream_test, FollowsEveryBlockingStreamOnce) {
  for (const char *schedule : {"threads", "jitter:1", "seeded:1", "seeded:2"}) {
    start(std::string("profile=h200,schedule=") + schedule);
    constexpr int kStreams = 8;
    journal j;
    std::vector<note> notes;
    notes.reserve(1000);
    std::vector<int> expected;
    const auto add = [&](CUstream s) {
      notes.push_back({&j, static_cast<int>(notes.size())});
      expected.push_back(notes.back().value);
      ASSERT_EQ(cuLaunchHostFunc(s, write_note, &notes.back()), CUDA_SUCCESS);
    };
    CUstream streams[kStreams];
    for (CUstream &s : streams) s = make_stream(CU_STREAM_DEFAULT);
    const CUstream first = make_stream(CU_STREAM_DEFAULT);
    ASSERT_EQ(cuLaunchHostFunc(
                  first, [](void *) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); },
                  nullptr),
              CUDA_SUCCESS);
    for (int i = 0; i < 40; ++i) {
      // Each one is ordered between two operations of the legacy stream.
      add(nullptr);
      if (i % 3 == 0) add(nullptr);
      add(streams[i % kStreams]);
      if (i == 20) {
        const CUstream brief = make_stream(CU_STREAM_DEFAULT);
        add(nullptr);
        add(brief);
        ASSERT_EQ(cuStreamDestroy(brief), CUDA_SUCCESS);
      }
    }
    ASSERT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(j.order, expected) << schedule;
  }
}

TEST_F(legacy_stream_test, DroppedWorkKeepsTheOrderOfLaterWork) {
  start("profile=h200,schedule=threads,lenient");
  const CUstream a = make_stream(CU_STREAM_DEFAULT);
  const CUdeviceptr at = reserve(kPage);
  map(at, create(kPage), kPage);
  journal j;
  note first{&j, 1};
  note second{&j, 2};
  ASSERT_EQ(hostcuda_hold(a), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchHostFunc(a, write_note, &first), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(at, 1, kPage, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchHostFunc(nullptr, write_note, &second), CUDA_SUCCESS);
  ASSERT_EQ(cuMemUnmap(at, kPage), CUDA_SUCCESS);  // drops the memset
  EXPECT_EQ(violations(), 1U);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(hostcuda_release(a), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(j.order, (std::vector<int>{1, 2}));
}

}  // namespace
}  // namespace hostcuda_tests
