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

}  // namespace
}  // namespace hostcuda_tests
