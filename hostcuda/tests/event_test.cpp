#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

using event_test = machine_test;

TEST_F(event_test, NeverRecordedCountsAsDone) {
  const CUevent e = make_event();
  EXPECT_EQ(cuEventQuery(e), CUDA_SUCCESS);
  EXPECT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWaitEvent(make_stream(), e, 0), CUDA_SUCCESS);
}

TEST_F(event_test, FollowsTheStreamItWasRecordedIn) {
  const CUstream s = make_stream();
  const CUevent e = make_event();
  ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(hostcuda_release(s), CUDA_SUCCESS);
  EXPECT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(e), CUDA_SUCCESS);
}

TEST_F(event_test, OrdersTwoStreams) {
  const CUstream a = make_stream();
  const CUstream b = make_stream();
  const CUevent e = make_event();
  journal j;
  note first{&j, 1};
  note second{&j, 2};
  ASSERT_EQ(hostcuda_hold(a), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchHostFunc(a, write_note, &first), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, a), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(b, e, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchHostFunc(b, write_note, &second), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(hostcuda_release(a), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
  EXPECT_EQ(j.order, (std::vector<int>{1, 2}));
}

TEST_F(event_test, AWaitKeepsTheRecordingItSaw) {
  const CUstream a = make_stream();
  const CUstream b = make_stream();
  const CUstream c = make_stream();
  const CUevent e = make_event();
  ASSERT_EQ(cuEventRecord(e, a), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(b, e, 0), CUDA_SUCCESS);
  ASSERT_EQ(hostcuda_hold(c), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, c), CUDA_SUCCESS);  // b does not wait for this one
  EXPECT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(hostcuda_release(c), CUDA_SUCCESS);
}

TEST_F(event_test, MayBeDestroyedWhilePending) {
  const CUstream a = make_stream();
  const CUstream b = make_stream();
  const CUevent e = make_event();
  ASSERT_EQ(hostcuda_hold(a), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, a), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(b, e, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuEventDestroy(e), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(hostcuda_release(a), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
}

TEST_F(event_test, MeasuresElapsedTime) {
  const CUstream s = make_stream();
  const CUevent start_event = make_event(CU_EVENT_DEFAULT);
  const CUevent end_event = make_event(CU_EVENT_DEFAULT);
  float ms = -1;
  EXPECT_EQ(cuEventElapsedTime(&ms, start_event, end_event), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(cuEventRecord(start_event, s), CUDA_SUCCESS);
  ASSERT_EQ(
      cuLaunchHostFunc(
          s, [](void *) { std::this_thread::sleep_for(std::chrono::milliseconds(3)); }, nullptr),
      CUDA_SUCCESS);
  ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(end_event, s), CUDA_SUCCESS);
  EXPECT_EQ(cuEventElapsedTime(&ms, start_event, end_event), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(hostcuda_release(s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  ASSERT_EQ(cuEventElapsedTime(&ms, start_event, end_event), CUDA_SUCCESS);
  EXPECT_GE(ms, 3.0F);
}

TEST_F(event_test, WithoutTimingHasNoTime) {
  const CUstream s = make_stream();
  const CUevent timed = make_event(CU_EVENT_DEFAULT);
  const CUevent untimed = make_event(CU_EVENT_DISABLE_TIMING);
  ASSERT_EQ(cuEventRecord(timed, s), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(untimed, s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  float ms = 0;
  EXPECT_EQ(cuEventElapsedTime(&ms, timed, untimed), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventElapsedTime(&ms, untimed, timed), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventElapsedTime(nullptr, timed, timed), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(event_test, RefusesBadInput) {
  CUevent e = nullptr;
  EXPECT_EQ(cuEventCreate(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuEventCreate(&e, 0x100), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuEventCreate(&e, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuEventQuery(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventRecord(nullptr, nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventRecordWithFlags(make_event(), make_stream(), CU_EVENT_RECORD_EXTERNAL),
            CUDA_ERROR_INVALID_VALUE);
}

// A recording that is done is written over by the next one: never one that another thread looks at, or that
// a stream waits for.
TEST_F(event_test, ThreadsRecordWaitAndAskAtOnce) {
  constexpr int threads = 4, rounds = 500;
  const CUevent shared[2] = {make_event(CU_EVENT_DEFAULT), make_event(CU_EVENT_DEFAULT)};
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      ASSERT_EQ(cuCtxSetCurrent(ctx_), CUDA_SUCCESS);
      const CUstream a = make_stream(), b = make_stream();
      const CUevent own = make_event();
      std::atomic<int> ran{0};
      const auto count = [](void *n) { ++*static_cast<std::atomic<int> *>(n); };
      for (int i = 0; i < rounds; ++i) {
        ASSERT_EQ(cuLaunchHostFunc(a, count, &ran), CUDA_SUCCESS);
        ASSERT_EQ(cuEventRecord(own, a), CUDA_SUCCESS);
        ASSERT_EQ(cuEventRecord(shared[(i + t) % 2], i % 3 == 0 ? a : b), CUDA_SUCCESS);
        ASSERT_EQ(cuStreamWaitEvent(b, own, 0), CUDA_SUCCESS);
        ASSERT_EQ(cuStreamWaitEvent(b, shared[i % 2], 0), CUDA_SUCCESS);
        float ms = 0;
        const CUresult r = cuEventElapsedTime(&ms, shared[0], shared[1]);
        ASSERT_TRUE(r == CUDA_SUCCESS || r == CUDA_ERROR_NOT_READY ||
                    r == CUDA_ERROR_INVALID_HANDLE)
            << r;
        const CUresult q = cuEventQuery(shared[i % 2]);
        ASSERT_TRUE(q == CUDA_SUCCESS || q == CUDA_ERROR_NOT_READY) << q;
        if (i % 4 == 0) {
          ASSERT_EQ(cuEventSynchronize(own), CUDA_SUCCESS);
          ASSERT_EQ(ran, i + 1);
        } else if (i % 4 == 1) {
          ASSERT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
          ASSERT_EQ(ran, i + 1);
        } else if (i % 4 == 2) {
          ASSERT_EQ(cuEventSynchronize(shared[(i + 1) % 2]), CUDA_SUCCESS);
        }
      }
      ASSERT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
      ASSERT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
    });
  }
  for (std::thread &t : all) t.join();
}

}  // namespace
}  // namespace hostcuda_tests
