#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

class graph_test : public machine_test {
 protected:
  void SetUp() override {
    machine_test::SetUp();
    at_ = reserve(2 * MiB);
    map(at_, create(2 * MiB), 2 * MiB);
  }

  // Captures two parallel branches that fill the halves of a buffer, and a copy to the host.
  CUgraphExec capture_fill(CUstream a, CUstream b, std::vector<unsigned char> *out) {
    const CUevent fork = make_event();
    const CUevent join = make_event();
    EXPECT_EQ(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(fork, a), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamWaitEvent(b, fork, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8Async(at_, 7, 2048, a), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8Async(at_ + 2048, 9, 2048, b), CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(join, b), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamWaitEvent(a, join, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoHAsync(out->data(), at_, out->size(), a), CUDA_SUCCESS);
    CUgraph g = nullptr;
    EXPECT_EQ(cuStreamEndCapture(a, &g), CUDA_SUCCESS);
    CUgraphExec exec = nullptr;
    EXPECT_EQ(cuGraphInstantiate(&exec, g, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);  // the executable graph does not need it
    return exec;
  }

  CUdeviceptr at_ = 0;
};

TEST_F(graph_test, ReplaysWhatWasCaptured) {
  const CUstream a = make_stream();
  std::vector<unsigned char> out(4096, 0);
  const CUgraphExec exec = capture_fill(a, make_stream(), &out);
  for (int round = 0; round < 3; ++round) {
    std::fill(out.begin(), out.end(), static_cast<unsigned char>(0));
    ASSERT_EQ(cuMemsetD8(at_, 0, 4096), CUDA_SUCCESS);
    ASSERT_EQ(cuGraphLaunch(exec, a), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
    EXPECT_EQ(out[0], 7);
    EXPECT_EQ(out[2047], 7);
    EXPECT_EQ(out[2048], 9);
    EXPECT_EQ(out[4095], 9);
  }
  EXPECT_EQ(violations(), 0U);
  EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(exec, a), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(graph_test, KeepsDependenciesInEverySeed) {
  for (int seed = 0; seed < 16; ++seed) {
    start("profile=h200,schedule=seeded:" + std::to_string(seed));
    const CUstream a = make_stream();
    const CUstream b = make_stream();
    const CUevent fork = make_event();
    const CUevent join = make_event();
    journal j;
    note notes[4] = {{&j, 0}, {&j, 1}, {&j, 2}, {&j, 3}};
    ASSERT_EQ(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    ASSERT_EQ(cuLaunchHostFunc(a, write_note, &notes[0]), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(fork, a), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(b, fork, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuLaunchHostFunc(a, write_note, &notes[1]), CUDA_SUCCESS);
    ASSERT_EQ(cuLaunchHostFunc(b, write_note, &notes[2]), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(join, b), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(a, join, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuLaunchHostFunc(a, write_note, &notes[3]), CUDA_SUCCESS);
    CUgraph g = nullptr;
    ASSERT_EQ(cuStreamEndCapture(a, &g), CUDA_SUCCESS);
    CUgraphExec exec = nullptr;
    ASSERT_EQ(cuGraphInstantiate(&exec, g, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuGraphLaunch(exec, a), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
    ASSERT_EQ(j.order.size(), 4U);
    EXPECT_EQ(j.order.front(), 0);
    EXPECT_EQ(j.order.back(), 3);
  }
}

TEST_F(graph_test, UnmapUnderAPendingLaunchIsAViolation) {
  const CUstream a = make_stream();
  std::vector<unsigned char> out(4096, 0);
  const CUgraphExec exec = capture_fill(a, make_stream(), &out);
  ASSERT_EQ(hostcuda_hold(a), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(exec, a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
  EXPECT_GE(violations(), 1U);
  EXPECT_EQ(violation(0).kind, HOSTCUDA_USE_AFTER_UNMAP);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(graph_test, CapturingRecordsNoAccess) {
  const CUstream a = make_stream();
  std::vector<unsigned char> out(4096, 0);
  capture_fill(a, make_stream(), &out);
  EXPECT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 0U);
}

TEST_F(graph_test, RefusesBadInput) {
  CUgraphExec exec = nullptr;
  int local = 0;
  const auto foreign = reinterpret_cast<CUgraph>(&local);
  std::size_t count = 0;
  EXPECT_EQ(cuGraphInstantiate(&exec, foreign, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphGetNodes(foreign, nullptr, &count), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphDestroy(foreign), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphExecDestroy(nullptr), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace hostcuda_tests
