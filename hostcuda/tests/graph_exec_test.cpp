// Executable graphs that change, memory of graphs, and user objects.
#include <algorithm>

#include "graph_fixture.h"

namespace hostcuda_tests {
namespace {

class graph_exec_test : public graph_fixture {
 protected:
  static CUgraphExec instantiate(CUgraph g, unsigned long long flags = 0) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, g, flags), CUDA_SUCCESS);
    return exec;
  }

  void run(CUgraphExec exec) {
    ASSERT_EQ(cuGraphLaunch(exec, stream_), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  }

  static CUdeviceptr alloc(CUgraph g, CUgraphNode *node) {
    CUDA_MEM_ALLOC_NODE_PARAMS p{};
    p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.bytesize = 4096;
    EXPECT_EQ(cuGraphAddMemAllocNode(node, g, nullptr, 0, &p), CUDA_SUCCESS);
    return p.dptr;
  }

  static cuuint64_t usage(CUgraphMem_attribute what) {
    cuuint64_t out = 0;
    EXPECT_EQ(cuDeviceGetGraphMemAttribute(0, what, &out), CUDA_SUCCESS);
    return out;
  }

  void SetUp() override {
    graph_fixture::SetUp();
    stream_ = make_stream();
  }

  CUstream stream_ = nullptr;
};

TEST_F(graph_exec_test, UpdatesParametersButNotStructure) {
  journal j;
  note one{&j, 1}, two{&j, 2};
  const CUgraph g = make();
  const CUgraphNode a = host(g, &one);
  const CUgraphExec exec = instantiate(g);
  const CUgraph other = make();
  host(other, &two);
  CUgraphExecUpdateResultInfo info{};
  ASSERT_EQ(cuGraphExecUpdate(exec, other, &info), CUDA_SUCCESS);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
  run(exec);
  EXPECT_EQ(j.order, (std::vector<int>{2}));
  // The node of the first graph still names the node of the executable graph.
  const CUDA_HOST_NODE_PARAMS p{write_note, &one};
  ASSERT_EQ(cuGraphExecHostNodeSetParams(exec, a, &p), CUDA_SUCCESS);
  run(exec);
  EXPECT_EQ(j.order, (std::vector<int>{2, 1}));

  const CUgraph longer = make();
  host(longer, &two, {host(longer, &one)});
  EXPECT_EQ(cuGraphExecUpdate(exec, longer, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  const CUgraph empty = make();
  CUgraphNode changed = nullptr;
  ASSERT_EQ(cuGraphAddEmptyNode(&changed, empty, nullptr, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphExecUpdate(exec, empty, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
  EXPECT_EQ(info.errorNode, changed);
  run(exec);  // unchanged by the failed updates
  EXPECT_EQ(j.order, (std::vector<int>{2, 1, 1}));
  EXPECT_EQ(cuGraphExecHostNodeSetParams(exec, changed, &p), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(graph_exec_test, ADifferentEdgeIsReported) {
  journal j;
  note n{&j, 1};
  const CUgraph g = make();
  host(g, &n, {host(g, &n)});
  const CUgraphExec exec = instantiate(g);
  const CUgraph other = make();
  host(other, &n);
  const CUgraphNode loose = host(other, &n);
  CUgraphExecUpdateResultInfo info{};
  EXPECT_EQ(cuGraphExecUpdate(exec, other, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  EXPECT_EQ(info.errorNode, loose);
}

TEST_F(graph_exec_test, ADisabledNodeDoesNotRun) {
  const CUdeviceptr at = reserve(2 * MiB);
  map(at, create(2 * MiB), 2 * MiB);
  const CUgraph g = make();
  CUgraphNode node = nullptr;
  const CUDA_MEMSET_NODE_PARAMS p{at, 0, 5, 1, 16, 1};
  ASSERT_EQ(cuGraphAddMemsetNode(&node, g, nullptr, 0, &p, ctx_), CUDA_SUCCESS);
  const CUgraphExec exec = instantiate(g);
  ASSERT_EQ(cuMemsetD8(at, 0, 16), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphNodeSetEnabled(exec, node, 0), CUDA_SUCCESS);
  unsigned enabled = 1;
  ASSERT_EQ(cuGraphNodeGetEnabled(exec, node, &enabled), CUDA_SUCCESS);
  EXPECT_EQ(enabled, 0U);
  unsigned char got = 9;
  run(exec);
  ASSERT_EQ(cuMemcpyDtoH(&got, at, 1), CUDA_SUCCESS);
  EXPECT_EQ(got, 0);
  ASSERT_EQ(cuGraphNodeSetEnabled(exec, node, 1), CUDA_SUCCESS);
  run(exec);
  ASSERT_EQ(cuMemcpyDtoH(&got, at, 1), CUDA_SUCCESS);
  EXPECT_EQ(got, 5);
}

TEST_F(graph_exec_test, MemoryIsAllocatedAndFreedByLaunches) {
  const CUgraph g = make();
  CUgraphNode node = nullptr;
  const CUdeviceptr at = alloc(g, &node);
  CUgraphNode filled = nullptr;
  const CUDA_MEMSET_NODE_PARAMS p{at, 0, 5, 1, 4096, 1};
  ASSERT_EQ(cuGraphAddMemsetNode(&filled, g, &node, 1, &p, ctx_), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroyNode(filled), CUDA_ERROR_NOT_SUPPORTED);
  CUgraph clone = nullptr;
  EXPECT_EQ(cuGraphClone(&clone, g), CUDA_ERROR_NOT_SUPPORTED);
  const CUgraphExec exec = instantiate(g);
  CUgraphExec second = nullptr;
  EXPECT_EQ(cuGraphInstantiateWithFlags(&second, g, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemFree(at), CUDA_ERROR_INVALID_VALUE);  // not launched
  run(exec);
  EXPECT_EQ(usage(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 4096U);
  unsigned char got = 0;
  ASSERT_EQ(cuMemcpyDtoH(&got, at + 4095, 1), CUDA_SUCCESS);
  EXPECT_EQ(got, 5);
  EXPECT_EQ(cuGraphLaunch(exec, stream_), CUDA_ERROR_INVALID_VALUE);  // not freed
  ASSERT_EQ(cuMemFreeAsync(at, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(at, stream_), CUDA_ERROR_INVALID_VALUE);
  run(exec);
  EXPECT_EQ(usage(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 4096U);
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFree(at), CUDA_SUCCESS);  // outlives its graph
  EXPECT_EQ(cuMemFree(at), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(usage(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0U);
  EXPECT_NE(usage(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0U);
  ASSERT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  EXPECT_EQ(usage(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0U);
  EXPECT_EQ(violations(), 0U);
}

TEST_F(graph_exec_test, AFreeNodeAllowsTheNextLaunch) {
  const CUgraph g = make();
  CUgraphNode node = nullptr, freed = nullptr;
  const CUdeviceptr at = alloc(g, &node);
  EXPECT_EQ(cuGraphAddMemFreeNode(&freed, g, &node, 1, at + 512), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuGraphAddMemFreeNode(&freed, g, &node, 1, at), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphAddMemFreeNode(&freed, g, &node, 1, at), CUDA_ERROR_INVALID_VALUE);
  const CUgraphExec exec = instantiate(g);
  run(exec);
  run(exec);
  EXPECT_EQ(usage(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0U);
}

TEST_F(graph_exec_test, CapturedAllocationsCanBeLaunchedAgain) {
  CUdeviceptr at = 0;
  unsigned char out[64] = {};
  ASSERT_EQ(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocAsync(&at, 4096, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(at, 6, 64, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync(out, at, 64, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(at, stream_), CUDA_SUCCESS);
  CUgraph g = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream_, &g), CUDA_SUCCESS);
  const CUgraphExec exec = instantiate(g);
  for (int round = 0; round < 3; ++round) {
    out[63] = 0;
    run(exec);
    EXPECT_EQ(out[63], 6);
  }
  EXPECT_EQ(violations(), 0U);
}

int destroyed = 0;
void CUDA_CB count_destroyed(void *) {
  ++destroyed;
}

// What holds references may die in any order; the destructor runs exactly once, with the last.
TEST_F(graph_exec_test, UserObjectsAreDestroyedExactlyOnceInAnyOrder) {
  int order[4] = {0, 1, 2, 3};
  do {
    destroyed = 0;
    CUuserObject object = nullptr;
    ASSERT_EQ(
        cuUserObjectCreate(&object, nullptr, count_destroyed, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
        CUDA_SUCCESS);
    const CUgraph g = make();
    ASSERT_EQ(cuGraphRetainUserObject(g, object, 2, 0), CUDA_SUCCESS);
    CUgraph clone = nullptr;
    ASSERT_EQ(cuGraphClone(&clone, g), CUDA_SUCCESS);
    const CUgraphExec exec = instantiate(g);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(destroyed, 0);
      switch (order[i]) {
        case 0:
          EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
          break;
        case 1:
          EXPECT_EQ(cuGraphDestroy(clone), CUDA_SUCCESS);
          break;
        case 2:
          EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
          break;
        default:
          EXPECT_EQ(cuUserObjectRelease(object, 1), CUDA_SUCCESS);
      }
    }
    EXPECT_EQ(destroyed, 1);
    EXPECT_EQ(cuUserObjectRetain(object, 1), CUDA_ERROR_INVALID_VALUE);
  } while (std::next_permutation(order, order + 4));
}

TEST_F(graph_exec_test, APendingLaunchKeepsUserObjects) {
  destroyed = 0;
  CUuserObject object = nullptr;
  ASSERT_EQ(
      cuUserObjectCreate(&object, nullptr, count_destroyed, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
      CUDA_SUCCESS);
  const CUgraph g = make();
  EXPECT_EQ(cuGraphRetainUserObject(g, object, 3, CU_GRAPH_USER_OBJECT_MOVE),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuGraphRetainUserObject(g, object, 2, CU_GRAPH_USER_OBJECT_MOVE), CUDA_SUCCESS);
  EXPECT_EQ(cuUserObjectRelease(object, 1), CUDA_ERROR_INVALID_VALUE);  // moved to the graph
  ASSERT_EQ(cuGraphReleaseUserObject(g, object, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphReleaseUserObject(g, object, 2), CUDA_ERROR_INVALID_VALUE);
  const CUgraphExec exec = instantiate(g);
  ASSERT_EQ(hostcuda_hold(stream_), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(exec, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(destroyed, 0);
  ASSERT_EQ(hostcuda_release(stream_), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(destroyed, 1);
}

}  // namespace
}  // namespace hostcuda_tests
