#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

class capture_test : public machine_test {
 protected:
  static CUstreamCaptureStatus status_of(CUstream s) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(cuStreamIsCapturing(s, &status), CUDA_SUCCESS);
    return status;
  }
  static std::size_t nodes_in(CUgraph g) {
    std::size_t count = 0;
    EXPECT_EQ(cuGraphGetNodes(g, nullptr, &count), CUDA_SUCCESS);
    return count;
  }
};

TEST_F(capture_test, RecordsInsteadOfRunning) {
  const CUstream s = make_stream();
  journal j;
  note n{&j, 1};
  ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(status_of(s), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ASSERT_EQ(cuLaunchHostFunc(s, write_note, &n), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchHostFunc(s, write_note, &n), CUDA_SUCCESS);
  CUgraph g = nullptr;
  ASSERT_EQ(cuStreamEndCapture(s, &g), CUDA_SUCCESS);
  EXPECT_EQ(status_of(s), CU_STREAM_CAPTURE_STATUS_NONE);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_TRUE(j.order.empty());
  EXPECT_EQ(nodes_in(g), 2U);
  CUgraphNode nodes[2] = {};
  std::size_t count = 2;
  ASSERT_EQ(cuGraphGetNodes(g, nodes, &count), CUDA_SUCCESS);
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  ASSERT_EQ(cuGraphNodeGetType(nodes[0], &type), CUDA_SUCCESS);
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_HOST);
  EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(g), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(capture_test, JoinsStreamsThroughEvents) {
  const CUstream a = make_stream();
  const CUstream b = make_stream();
  const CUevent fork = make_event();
  const CUevent join = make_event();
  journal j;
  note n{&j, 1};
  ASSERT_EQ(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(fork, a), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(b, fork, 0), CUDA_SUCCESS);
  EXPECT_EQ(status_of(b), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ASSERT_EQ(cuLaunchHostFunc(b, write_note, &n), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(join, b), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(a, join, 0), CUDA_SUCCESS);
  CUgraph g = nullptr;
  EXPECT_EQ(cuStreamEndCapture(b, &g), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  ASSERT_EQ(cuStreamEndCapture(a, &g), CUDA_SUCCESS);
  EXPECT_EQ(nodes_in(g), 1U);
  EXPECT_EQ(status_of(b), CU_STREAM_CAPTURE_STATUS_NONE);
}

TEST_F(capture_test, AStreamThatIsNotJoinedBackIsUnjoined) {
  const CUstream a = make_stream();
  const CUstream b = make_stream();
  const CUevent fork = make_event();
  journal j;
  note n{&j, 1};
  ASSERT_EQ(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(fork, a), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(b, fork, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchHostFunc(b, write_note, &n), CUDA_SUCCESS);
  CUgraph g = nullptr;
  EXPECT_EQ(cuStreamEndCapture(a, &g), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(g, nullptr);
}

// Regression: cuda.core destroys a stream after it has joined it back, before the capture ends.
TEST_F(capture_test, AJoinedStreamCanBeDestroyedBeforeTheEnd) {
  const CUstream a = make_stream();
  for (const bool joined : {true, false}) {
    const CUstream b = make_stream();
    const CUevent fork = make_event();
    const CUevent join = make_event();
    journal j;
    note n{&j, 1};
    ASSERT_EQ(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(fork, a), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(b, fork, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuLaunchHostFunc(b, write_note, &n), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(join, b), CUDA_SUCCESS);
    if (joined) {
      ASSERT_EQ(cuStreamWaitEvent(a, join, 0), CUDA_SUCCESS);
    }
    ASSERT_EQ(cuStreamDestroy(b), CUDA_SUCCESS);
    CUgraph g = nullptr;
    EXPECT_EQ(cuStreamEndCapture(a, &g),
              joined ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  }
}

TEST_F(capture_test, WaitingForACapturingStreamInvalidatesTheCapture) {
  const CUstream s = make_stream();
  ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(status_of(s), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(cuLaunchHostFunc(s, write_note, nullptr), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CUgraph g = nullptr;
  EXPECT_EQ(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(g, nullptr);
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
}

TEST_F(capture_test, ABlockingCaptureForbidsTheLegacyStream) {
  const CUstream s = make_stream(CU_STREAM_DEFAULT);
  ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  CUstreamCaptureStatus status{};
  EXPECT_EQ(cuStreamIsCapturing(nullptr, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(status_of(s), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(cuLaunchHostFunc(nullptr, write_note, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(status_of(s), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

TEST_F(capture_test, TheLegacyStreamCannotCapture) {
  EXPECT_EQ(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

TEST_F(capture_test, DependingOnWorkOutsideFails) {
  const CUstream s = make_stream();
  const CUevent outside = make_event();
  ASSERT_EQ(cuEventRecord(outside, make_stream()), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWaitEvent(s, outside, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
}

TEST_F(capture_test, TwoCapturesDoNotMerge) {
  const CUstream a = make_stream();
  const CUstream b = make_stream();
  const CUevent e = make_event();
  ASSERT_EQ(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture(b, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, a), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWaitEvent(b, e, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
  EXPECT_EQ(status_of(a), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

TEST_F(capture_test, ACapturedEventCannotBeQueried) {
  const CUstream s = make_stream();
  const CUevent e = make_event();
  ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_CAPTURED_EVENT);
}

TEST_F(capture_test, AnEventQueryInvalidatesAGlobalCaptureUnlessTheThreadIsRelaxed) {
  const CUstream s = make_stream();
  const CUevent before = make_event();
  ASSERT_EQ(cuEventRecord(before, make_stream()), CUDA_SUCCESS);
  CUgraph g = nullptr;
  for (const CUstreamCaptureMode asking :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CU_STREAM_CAPTURE_MODE_RELAXED}) {
    const bool spoils = asking == CU_STREAM_CAPTURE_MODE_GLOBAL;
    ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    std::thread([&] {
      CUstreamCaptureMode mode = asking;
      EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
      EXPECT_EQ(cuCtxSetCurrent(ctx_), CUDA_SUCCESS);
      EXPECT_EQ(cuEventQuery(before) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, spoils);
    }).join();
    EXPECT_EQ(cuStreamEndCapture(s, &g),
              spoils ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
  }
}

TEST_F(capture_test, GlobalModeMustEndOnItsThread) {
  const CUstream s = make_stream();
  ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  std::thread([&] {
    CUgraph g = nullptr;
    EXPECT_EQ(cuCtxSetCurrent(ctx_), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  }).join();
  CUgraph g = nullptr;
  EXPECT_EQ(cuStreamEndCapture(s, &g), CUDA_SUCCESS);
  EXPECT_EQ(nodes_in(g), 0U);
}

TEST_F(capture_test, ModesDetermineWhichThreadsMayAllocate) {
  const CUstream s = make_stream();
  CUdeviceptr p = 0;
  CUgraph g = nullptr;
  ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&p, 4096), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamEndCapture(s, &g), CUDA_SUCCESS);

  ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
  std::thread([&] {
    CUdeviceptr q = 0;
    EXPECT_EQ(cuCtxSetCurrent(ctx_), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc(&q, 4096), CUDA_SUCCESS);
  }).join();
  ASSERT_EQ(cuStreamEndCapture(s, &g), CUDA_SUCCESS);

  ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&p, 4096), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(cuMemAlloc(&p, 4096), CUDA_SUCCESS);
  ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamEndCapture(s, &g), CUDA_SUCCESS);
}

TEST_F(capture_test, MappingMayBeAllowed) {
  for (const bool allowed : {false, true}) {
    start(allowed ? "vmm_in_capture=allow" : "vmm_in_capture=refuse");
    const CUresult expected = allowed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const CUstream s = make_stream();
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    constexpr std::size_t page = std::size_t{2} << 20;
    CUmemAccessDesc access{};
    access.location = prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUdeviceptr at = 0;
    CUmemGenericAllocationHandle first = 0, second = 0;
    ASSERT_EQ(cuMemAddressReserve(&at, page, 0, 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemCreate(&first, page, &prop, 0), CUDA_SUCCESS);

    ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    EXPECT_EQ(cuMemCreate(&second, page, &prop, 0), expected);
    EXPECT_EQ(cuMemMap(at, page, 0, first, 0), expected);
    EXPECT_EQ(cuMemSetAccess(at, page, &access, 1), expected);
    EXPECT_EQ(status_of(s),
              allowed ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    EXPECT_EQ(cuMemUnmap(at, page), expected);
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAlloc(&p, 4096), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);  // in any case
    CUgraph g = nullptr;
    EXPECT_EQ(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  EXPECT_EQ(hostcuda_reset("vmm_in_capture=perhaps"), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(capture_test, BeginTwiceAndEndWithoutBeginAreIllegal) {
  const CUstream s = make_stream();
  CUgraph g = nullptr;
  EXPECT_EQ(cuStreamEndCapture(s, &g), CUDA_ERROR_ILLEGAL_STATE);
  ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
}

}  // namespace
}  // namespace hostcuda_tests
