// Graphs that the program builds node by node.
#include <cstdio>
#include <cstring>

#include "graph_fixture.h"

// The functions for edges have an argument more since CUDA 13.
#if CUDA_VERSION >= 13000
#define WITHOUT_DATA(count) nullptr, count
#else
#define WITHOUT_DATA(count) count
#endif

namespace hostcuda_tests {
namespace {

class graph_nodes_test : public graph_fixture {
 protected:
  void SetUp() override {
    graph_fixture::SetUp();
    prepare();
  }

  void prepare() {
    at_ = reserve(2 * MiB);
    map(at_, create(2 * MiB), 2 * MiB);
    graph_ = make();
  }

  CUgraphNode fill(CUgraph g, unsigned value, const std::vector<CUgraphNode> &after = {}) {
    CUgraphNode node = nullptr;
    const CUDA_MEMSET_NODE_PARAMS p{at_, 0, value, 1, 4096, 1};
    EXPECT_EQ(cuGraphAddMemsetNode(&node, g, after.data(), after.size(), &p, ctx_), CUDA_SUCCESS);
    return node;
  }

  CUDA_MEMCPY3D to_host(void *out) const {
    CUDA_MEMCPY3D c{};
    c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    c.srcDevice = at_;
    c.dstMemoryType = CU_MEMORYTYPE_HOST;
    c.dstHost = out;
    c.WidthInBytes = 4096;
    c.Height = 1;
    c.Depth = 1;
    return c;
  }

  CUgraphNode copy_out(CUgraph g, void *out, const std::vector<CUgraphNode> &after) {
    CUgraphNode node = nullptr;
    const CUDA_MEMCPY3D c = to_host(out);
    EXPECT_EQ(cuGraphAddMemcpyNode(&node, g, after.data(), after.size(), &c, ctx_), CUDA_SUCCESS);
    return node;
  }

  static CUgraphExec instantiate(CUgraph g) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, g, 0), CUDA_SUCCESS);
    return exec;
  }

  static void run(CUgraphExec exec) {
    const CUstream s = make_stream();
    ASSERT_EQ(cuGraphLaunch(exec, s), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamDestroy(s), CUDA_SUCCESS);
  }

  static std::size_t node_count(CUgraph g) {
    std::size_t count = 0;
    EXPECT_EQ(cuGraphGetNodes(g, nullptr, &count), CUDA_SUCCESS);
    return count;
  }

  CUdeviceptr at_ = 0;
  CUgraph graph_ = nullptr;
};

TEST_F(graph_nodes_test, RunsInTheOrderOfItsEdgesInEverySeed) {
  for (int seed = 0; seed < 12; ++seed) {
    start("profile=h200,schedule=seeded:" + std::to_string(seed));
    const CUgraph g = make();
    journal j;
    note notes[4] = {{&j, 0}, {&j, 1}, {&j, 2}, {&j, 3}};
    // The last node is added first, so that only the edges order it.
    const CUgraphNode last = host(g, &notes[3]);
    const CUgraphNode first = host(g, &notes[0]);
    const CUgraphNode left = host(g, &notes[1], {first});
    const CUgraphNode right = host(g, &notes[2], {first});
    const CUgraphNode from[] = {left, right};
    const CUgraphNode to[] = {last, last};
    ASSERT_EQ(cuGraphAddDependencies(g, from, to, WITHOUT_DATA(2)), CUDA_SUCCESS);
    run(instantiate(g));
    ASSERT_EQ(j.order.size(), 4U);
    EXPECT_EQ(j.order.front(), 0);
    EXPECT_EQ(j.order.back(), 3);
  }
}

TEST_F(graph_nodes_test, FillsAndCopies) {
  std::vector<unsigned char> out(4096, 0);
  const CUgraphNode filled = fill(graph_, 7);
  copy_out(graph_, out.data(), {filled});
  const CUgraphExec exec = instantiate(graph_);
  ASSERT_EQ(cuGraphDestroy(graph_), CUDA_SUCCESS);
  run(exec);
  EXPECT_EQ(out[0], 7);
  EXPECT_EQ(out[4095], 7);
  EXPECT_EQ(violations(), 0U);
}

TEST_F(graph_nodes_test, ACopyReadsTheHostWhenItRuns) {
  std::vector<unsigned char> in(4096, 1);
  CUDA_MEMCPY3D c{};
  c.srcMemoryType = CU_MEMORYTYPE_HOST;
  c.srcHost = in.data();
  c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  c.dstDevice = at_;
  c.WidthInBytes = 4096;
  c.Height = c.Depth = 1;
  CUgraphNode node = nullptr;
  ASSERT_EQ(cuGraphAddMemcpyNode(&node, graph_, nullptr, 0, &c, ctx_), CUDA_SUCCESS);
  const CUgraphExec exec = instantiate(graph_);
  in.assign(4096, 5);
  run(exec);
  unsigned char got = 0;
  ASSERT_EQ(cuMemcpyDtoH(&got, at_ + 9, 1), CUDA_SUCCESS);
  EXPECT_EQ(got, 5);
}

TEST_F(graph_nodes_test, ReportsItsNodesAndEdges) {
  journal j;
  note n{&j, 0};
  const CUgraphNode a = host(graph_, &n);
  const CUgraphNode b = fill(graph_, 1, {a});
  CUgraphNode c = nullptr;
  const CUgraphNode both[] = {a, b};
  ASSERT_EQ(cuGraphAddEmptyNode(&c, graph_, both, 2), CUDA_SUCCESS);
  CUgraphNodeType type{};
  ASSERT_EQ(cuGraphNodeGetType(c, &type), CUDA_SUCCESS);
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_EMPTY);
  CUgraphNode from[4] = {}, to[4] = {};
  std::size_t count = 4;
  ASSERT_EQ(cuGraphGetEdges(graph_, from, to, WITHOUT_DATA(&count)), CUDA_SUCCESS);
  ASSERT_EQ(count, 3U);
  EXPECT_EQ(from[0], a);
  EXPECT_EQ(to[0], b);
  EXPECT_EQ(from[3], nullptr);
  count = 4;
  ASSERT_EQ(cuGraphNodeGetDependentNodes(a, to, WITHOUT_DATA(&count)), CUDA_SUCCESS);
  EXPECT_EQ(count, 2U);
  count = 4;
  ASSERT_EQ(cuGraphNodeGetDependencies(c, from, WITHOUT_DATA(&count)), CUDA_SUCCESS);
  EXPECT_EQ(count, 2U);
  ASSERT_EQ(cuGraphDestroyNode(a), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroyNode(a), CUDA_ERROR_INVALID_VALUE);
  count = 0;
  ASSERT_EQ(cuGraphNodeGetDependencies(c, nullptr, WITHOUT_DATA(&count)), CUDA_SUCCESS);
  EXPECT_EQ(count, 1U);
  EXPECT_EQ(node_count(graph_), 2U);
}

TEST_F(graph_nodes_test, RefusesForeignNodesRepeatedEdgesAndCycles) {
  journal j;
  note n{&j, 0};
  const CUgraphNode a = host(graph_, &n);
  const CUgraphNode b = host(graph_, &n, {a});
  const CUgraphNode foreign = host(make(), &n);
  CUgraphNode out = nullptr;
  EXPECT_EQ(cuGraphAddEmptyNode(&out, graph_, &foreign, 1), CUDA_ERROR_INVALID_VALUE);
  const CUgraphNode twice[] = {a, a};
  EXPECT_EQ(cuGraphAddEmptyNode(&out, graph_, twice, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphAddDependencies(graph_, &a, &b, WITHOUT_DATA(1)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphAddDependencies(graph_, &a, &a, WITHOUT_DATA(1)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphAddDependencies(graph_, &foreign, &b, WITHOUT_DATA(1)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphRemoveDependencies(graph_, &b, &a, WITHOUT_DATA(1)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(node_count(graph_), 2U);
  ASSERT_EQ(cuGraphAddDependencies(graph_, &b, &a, WITHOUT_DATA(1)), CUDA_SUCCESS);
  CUDA_GRAPH_INSTANTIATE_PARAMS p{};
  CUgraphExec exec = nullptr;
  EXPECT_EQ(cuGraphInstantiateWithParams(&exec, graph_, &p), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(p.result_out, CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE);
  EXPECT_TRUE(p.hErrNode_out == a || p.hErrNode_out == b);
  ASSERT_EQ(cuGraphRemoveDependencies(graph_, &b, &a, WITHOUT_DATA(1)), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphInstantiateWithParams(&exec, graph_, &p), CUDA_SUCCESS);
}

TEST_F(graph_nodes_test, CapturedNodesHaveParameters) {
  const CUstream s = make_stream();
  unsigned char out[64] = {};
  ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(at_, 3, 64, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync(out, at_, 64, s), CUDA_SUCCESS);
  CUgraph g = nullptr;
  ASSERT_EQ(cuStreamEndCapture(s, &g), CUDA_SUCCESS);
  CUgraphNode nodes[2] = {};
  std::size_t count = 2;
  ASSERT_EQ(cuGraphGetNodes(g, nodes, &count), CUDA_SUCCESS);
  CUDA_MEMSET_NODE_PARAMS f{};
  ASSERT_EQ(cuGraphMemsetNodeGetParams(nodes[0], &f), CUDA_SUCCESS);
  EXPECT_EQ(f.dst, at_);
  EXPECT_EQ(f.value, 3U);
  CUDA_MEMCPY3D c{};
  ASSERT_EQ(cuGraphMemcpyNodeGetParams(nodes[1], &c), CUDA_SUCCESS);
  EXPECT_EQ(c.dstHost, out);
  EXPECT_EQ(c.WidthInBytes, 64U);
  EXPECT_EQ(cuGraphMemcpyNodeGetParams(nodes[0], &c), CUDA_ERROR_INVALID_VALUE);
  const CUgraphExec exec = instantiate(g);
  f.value = 4;
  ASSERT_EQ(cuGraphExecMemsetNodeSetParams(exec, nodes[0], &f, ctx_), CUDA_SUCCESS);
  run(exec);
  EXPECT_EQ(out[63], 4);
}

TEST_F(graph_nodes_test, CloneAndChildAreIndependentOfTheOriginal) {
  journal j;
  note notes[3] = {{&j, 1}, {&j, 2}, {&j, 3}};
  const CUgraph inner = make();
  const CUgraphNode original = host(inner, &notes[0]);
  const CUgraphNode before = host(graph_, &notes[1]);
  CUgraphNode child = nullptr;
  ASSERT_EQ(cuGraphAddChildGraphNode(&child, graph_, &before, 1, inner), CUDA_SUCCESS);
  host(graph_, &notes[2], {child});
  ASSERT_EQ(cuGraphDestroy(inner), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroyNode(original), CUDA_ERROR_INVALID_VALUE);
  CUgraph embedded = nullptr;
  ASSERT_EQ(cuGraphChildGraphNodeGetGraph(child, &embedded), CUDA_SUCCESS);
  EXPECT_EQ(node_count(embedded), 1U);
  EXPECT_EQ(cuGraphDestroy(embedded), CUDA_ERROR_INVALID_VALUE);
  CUgraph clone = nullptr;
  ASSERT_EQ(cuGraphClone(&clone, graph_), CUDA_SUCCESS);
  CUgraphNode found = nullptr;
  ASSERT_EQ(cuGraphNodeFindInClone(&found, before, clone), CUDA_SUCCESS);
  EXPECT_NE(found, before);
  EXPECT_EQ(cuGraphNodeFindInClone(&found, before, graph_), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuGraphDestroy(graph_), CUDA_SUCCESS);
  std::size_t none = 0;
  EXPECT_EQ(cuGraphGetNodes(embedded, nullptr, &none), CUDA_ERROR_INVALID_VALUE);
  run(instantiate(clone));
  EXPECT_EQ(j.order, (std::vector<int>{2, 1, 3}));
}

TEST_F(graph_nodes_test, ALaunchInACaptureIsAChildGraphAndRunsOnce) {
  journal j;
  note n{&j, 1};
  host(graph_, &n);
  const CUgraphExec exec = instantiate(graph_);
  const CUstream s = make_stream();
  ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(exec, s), CUDA_SUCCESS);
  CUgraph g = nullptr;
  ASSERT_EQ(cuStreamEndCapture(s, &g), CUDA_SUCCESS);
  EXPECT_TRUE(j.order.empty());
  CUgraphNode node = nullptr;
  std::size_t count = 1;
  ASSERT_EQ(cuGraphGetNodes(g, &node, &count), CUDA_SUCCESS);
  CUgraph child = nullptr;
  EXPECT_EQ(cuGraphChildGraphNodeGetGraph(node, &child), CUDA_SUCCESS);
  run(instantiate(g));
  EXPECT_EQ(j.order.size(), 1U);
}

// cuda.core embeds a graph in a capture like this.
TEST_F(graph_nodes_test, ANodeCanBeAddedToACapture) {
  journal j;
  note notes[3] = {{&j, 1}, {&j, 2}, {&j, 3}};
  const CUstream s = make_stream();
  CUgraphNode node = nullptr;
  ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchHostFunc(s, write_note, &notes[0]), CUDA_SUCCESS);
  CUstreamCaptureStatus status{};
  CUgraph into = nullptr;
  const CUgraphNode *tail = nullptr;
  std::size_t count = 0;
  ASSERT_EQ(cuStreamGetCaptureInfo(s, &status, nullptr, &into, &tail, WITHOUT_DATA(&count)),
            CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, into, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphDestroy(into), CUDA_ERROR_INVALID_VALUE);
  node = host(into, &notes[1], {tail, tail + count});
  CUgraphNode foreign = host(graph_, &notes[1]);
  constexpr unsigned set = CU_STREAM_SET_CAPTURE_DEPENDENCIES;
  EXPECT_EQ(cuStreamUpdateCaptureDependencies(s, &foreign, WITHOUT_DATA(1), set),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuStreamUpdateCaptureDependencies(s, &node, WITHOUT_DATA(1), set), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchHostFunc(s, write_note, &notes[2]), CUDA_SUCCESS);
  CUgraph g = nullptr;
  ASSERT_EQ(cuStreamEndCapture(s, &g), CUDA_SUCCESS);
  run(instantiate(g));
  EXPECT_EQ(j.order, (std::vector<int>{1, 2, 3}));
}

TEST_F(graph_nodes_test, EventsOrderAGraphWithStreams) {
  const CUevent before = make_event();
  const CUevent done = make_event();
  const CUstream held = make_stream();
  const CUstream s = make_stream();
  std::vector<unsigned char> out(4096, 0);
  CUgraphNode wait = nullptr;
  ASSERT_EQ(cuGraphAddEventWaitNode(&wait, graph_, nullptr, 0, before), CUDA_SUCCESS);
  const CUgraphNode copied = copy_out(graph_, out.data(), {wait});
  CUgraphNode record = nullptr;
  ASSERT_EQ(cuGraphAddEventRecordNode(&record, graph_, &copied, 1, done), CUDA_SUCCESS);
  const CUgraphExec exec = instantiate(graph_);
  ASSERT_EQ(hostcuda_hold(held), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(at_, 9, 4096, held), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(before, held), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(exec, s), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(done), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(hostcuda_release(held), CUDA_SUCCESS);
  ASSERT_EQ(cuEventSynchronize(done), CUDA_SUCCESS);
  EXPECT_EQ(out[4095], 9);
  EXPECT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);  // all work is known to be done
  EXPECT_EQ(violations(), 0U);
}

TEST_F(graph_nodes_test, TheOracleSeesTheNodes) {
  fill(graph_, 1);
  const CUgraphExec exec = instantiate(graph_);
  const CUstream s = make_stream();
  ASSERT_EQ(cuGraphLaunch(exec, s), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
  ASSERT_GE(violations(), 1U);
  EXPECT_EQ(violation(0).kind, HOSTCUDA_USE_AFTER_UNMAP);
}

TEST_F(graph_nodes_test, PrintsADotFile) {
  const CUgraphNode a = fill(graph_, 1);
  copy_out(graph_, &at_, {a});
  const std::string path = ::testing::TempDir() + "graph.dot";
  ASSERT_EQ(cuGraphDebugDotPrint(graph_, path.c_str(), 0), CUDA_SUCCESS);
  std::string text(4096, '\0');
  std::FILE *const f = std::fopen(path.c_str(), "r");
  ASSERT_NE(f, nullptr);
  text.resize(std::fread(text.data(), 1, text.size(), f));
  std::fclose(f);
  EXPECT_EQ(text.rfind("digraph", 0), 0U);
  EXPECT_NE(text.find("MEMSET"), std::string::npos);
  EXPECT_NE(text.find("\"graph_1_node_0\" -> \"graph_1_node_1\""), std::string::npos);
  EXPECT_EQ(cuGraphDebugDotPrint(graph_, "/no/such/folder", 0), CUDA_ERROR_OPERATING_SYSTEM);
}

}  // namespace
}  // namespace hostcuda_tests
