// Streams, events, capture and graphs.
#include <atomic>
#include <thread>

#include "runtime_fixture.h"

namespace cudart_tests {
namespace {

class runtime_stream : public runtime_test {
 protected:
  static cudaStream_t make_stream() {
    cudaStream_t s = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
    return s;
  }
};

TEST_F(runtime_stream, flags_and_priority) {
  cudaStream_t s = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, -1), cudaSuccess);
  unsigned flags = 0;
  int priority = 1;
  ASSERT_EQ(cudaStreamGetFlags(s, &flags), cudaSuccess);
  ASSERT_EQ(cudaStreamGetPriority(s, &priority), cudaSuccess);
  EXPECT_EQ(flags, unsigned{cudaStreamNonBlocking});
  EXPECT_EQ(priority, -1);
  EXPECT_EQ(cudaStreamDestroy(s), cudaSuccess);
}

TEST_F(runtime_stream, pending_work_is_not_ready) {
  const cudaStream_t s = make_stream();
  void *const at = allocate(64);
  ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
  ASSERT_EQ(cudaMemsetAsync(at, 1, 64, s), cudaSuccess);
  cudaEvent_t e = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(e, s), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(s), cudaErrorNotReady);
  EXPECT_EQ(cudaEventQuery(e), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  ASSERT_EQ(hostcuda_release(s), CUDA_SUCCESS);
  EXPECT_EQ(cudaEventSynchronize(e), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(s), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(e), cudaSuccess);
}

TEST_F(runtime_stream, a_stream_waits_for_an_event_of_another) {
  const cudaStream_t first = make_stream();
  const cudaStream_t second = make_stream();
  static std::atomic<int> order;
  static int seen_by_second;
  order = 0;
  cudaEvent_t e = nullptr;
  ASSERT_EQ(cudaEventCreate(&e), cudaSuccess);
  ASSERT_EQ(hostcuda_hold(first), CUDA_SUCCESS);
  ASSERT_EQ(cudaLaunchHostFunc(
                first, [](void *) { order = 1; }, nullptr),
            cudaSuccess);
  ASSERT_EQ(cudaEventRecord(e, first), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second, e, 0), cudaSuccess);
  ASSERT_EQ(cudaLaunchHostFunc(
                second, [](void *) { seen_by_second = order; }, nullptr),
            cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(second), cudaErrorNotReady);
  ASSERT_EQ(hostcuda_release(first), CUDA_SUCCESS);
  ASSERT_EQ(cudaStreamSynchronize(second), cudaSuccess);
  EXPECT_EQ(seen_by_second, 1);
}

TEST_F(runtime_stream, a_callback_gets_its_stream_and_the_status) {
  const cudaStream_t s = make_stream();
  struct call {
    cudaStream_t stream;
    cudaError_t status;
  } got = {nullptr, cudaErrorUnknown};
  const auto callback = [](cudaStream_t stream, cudaError_t status, void *user) {
    *static_cast<call *>(user) = {stream, status};
  };
  ASSERT_EQ(cudaStreamAddCallback(s, callback, &got, 0), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(s), cudaSuccess);
  EXPECT_EQ(got.stream, s);
  EXPECT_EQ(got.status, cudaSuccess);
}

TEST_F(runtime_stream, time_passes_between_events) {
  cudaEvent_t a = nullptr;
  cudaEvent_t b = nullptr;
  ASSERT_EQ(cudaEventCreate(&a), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&b), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(a, nullptr), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(b, nullptr), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(b), cudaSuccess);
  float ms = -1;
  ASSERT_EQ(cudaEventElapsedTime(&ms, a, b), cudaSuccess);
  EXPECT_GE(ms, 0);
}

// The variants for a default stream of the thread do not wait for the legacy stream.
TEST_F(runtime_stream, the_default_stream_of_a_thread) {
  void *const at = allocate(64);
  cudaStream_t per_thread = cudaStreamPerThread;
  ASSERT_EQ(cudaMemsetAsync_ptsz(at, 0, 64, nullptr), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize_ptsz(nullptr), cudaSuccess);
  ASSERT_EQ(hostcuda_hold(per_thread), CUDA_SUCCESS);
  ASSERT_EQ(cudaMemsetAsync_ptsz(at, 7, 64, nullptr), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(per_thread), cudaErrorNotReady);
  ASSERT_EQ(hostcuda_release(per_thread), CUDA_SUCCESS);
  unsigned char out = 0;
  ASSERT_EQ(cudaMemcpy_ptds(&out, at, 1, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(out, 7);
}

class runtime_graph : public runtime_stream {};

TEST_F(runtime_graph, a_capture_becomes_a_graph_that_runs) {
  const cudaStream_t s = make_stream();
  void *const at = allocate(64);
  ASSERT_EQ(cudaMemset(at, 0, 64), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  cudaStreamCaptureStatus status{};
  ASSERT_EQ(cudaStreamIsCapturing(s, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  ASSERT_EQ(cudaMemsetAsync(at, 9, 64, s), cudaSuccess);
  unsigned long long id = 0;
  cudaGraph_t capturing = nullptr;
  const cudaGraphNode_t *last = nullptr;
  std::size_t count = 0;
#if CUDART_VERSION >= 13000
  ASSERT_EQ(cudaStreamGetCaptureInfo(s, &status, &id, &capturing, &last, nullptr, &count),
            cudaSuccess);
#else
  ASSERT_EQ(cudaStreamGetCaptureInfo(s, &status, &id, &capturing, &last, &count), cudaSuccess);
#endif
  EXPECT_EQ(count, 1U);
  EXPECT_NE(capturing, nullptr);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(s, &graph), cudaSuccess);

  std::size_t nodes = 0;
  ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  ASSERT_EQ(nodes, 1U);
  cudaGraphNode_t node = nullptr;
  ASSERT_EQ(cudaGraphGetNodes(graph, &node, &nodes), cudaSuccess);
  cudaGraphNodeType type{};
  ASSERT_EQ(cudaGraphNodeGetType(node, &type), cudaSuccess);
  EXPECT_EQ(type, cudaGraphNodeTypeMemset);

  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  unsigned char byte = 1;
  ASSERT_EQ(cudaMemcpy(&byte, at, 1, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(byte, 0);  // capturing has run nothing
  ASSERT_EQ(cudaGraphLaunch(exec, s), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(s), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(&byte, at, 1, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(byte, 9);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(runtime_graph, a_forbidden_call_invalidates_the_capture) {
  const cudaStream_t s = make_stream();
  ASSERT_EQ(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(s), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(runtime_graph, capture_modes_are_exchanged) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(mode, cudaStreamCaptureModeRelaxed);
}

class runtime_driver : public runtime_test {};

TEST_F(runtime_driver, entry_points_are_the_drivers) {
  void *found = nullptr;
  cudaDriverEntryPointQueryResult status{};
#if CUDART_VERSION >= 12050
  ASSERT_EQ(
      cudaGetDriverEntryPointByVersion("cuMemGetInfo", &found, 12000, cudaEnableDefault, &status),
      cudaSuccess);
#else
  ASSERT_EQ(cudaGetDriverEntryPoint("cuMemGetInfo", &found, cudaEnableDefault, &status),
            cudaSuccess);
#endif
  EXPECT_EQ(status, cudaDriverEntryPointSuccess);
  EXPECT_EQ(found, reinterpret_cast<void *>(&cuMemGetInfo));
  ASSERT_EQ(cudaGetDriverEntryPoint("cuNoSuchThing", &found, cudaEnableDefault, &status),
            cudaSuccess);
  EXPECT_EQ(status, cudaDriverEntryPointSymbolNotFound);
  EXPECT_EQ(found, nullptr);
}

TEST_F(runtime_driver, the_profiler_can_be_switched) {
  EXPECT_EQ(cudaProfilerStart(), cudaSuccess);
  EXPECT_EQ(cudaProfilerStop(), cudaSuccess);
  EXPECT_EQ(calls("cuProfilerStart"), 1U);
}

}  // namespace
}  // namespace cudart_tests
