// Copies to, from and between CUDA arrays.
#include <algorithm>
#include <string>
#include <vector>

#include "array_fixture.h"

namespace hostcuda_tests {
namespace {

class array_copies : public array_test {};

TEST_F(array_copies, OneDimensionalCopies) {
  const CUarray a = create(shape(256, 0, 0, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1));
  const CUarray b = create(shape(256, 0, 0, 0, CU_AD_FORMAT_FLOAT, 1));
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAlloc(&at, 1024), CUDA_SUCCESS);
  const bytes_t in = counting(1024);
  bytes_t out(1024);
  ASSERT_EQ(cuMemcpyHtoA(a, 0, in.data(), 1024), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyAtoA(b, 256, a, 512, 512), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyAtoD(at, b, 256, 512), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoA(b, 0, at, 256), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyAtoH(out.data(), b, 0, 768), CUDA_SUCCESS);
  EXPECT_TRUE(std::equal(out.begin(), out.begin() + 256, in.begin() + 512));
  EXPECT_TRUE(std::equal(out.begin() + 256, out.begin() + 768, in.begin() + 512));
  // Beyond the end, and off the elements.
  EXPECT_EQ(cuMemcpyHtoA(a, 4, in.data(), 1024), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoA(a, ~std::size_t{3}, in.data(), 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoA(a, 2, in.data(), 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyAtoH(out.data(), a, 0, 6), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyAtoH(out.data(), nullptr, 0, 4), CUDA_ERROR_INVALID_VALUE);
  const CUarray bytes = create(shape(1024, 0, 0));
  EXPECT_EQ(cuMemcpyAtoA(bytes, 0, a, 0, 4), CUDA_ERROR_INVALID_VALUE);  // other elements
  const CUarray flat = create(shape(64, 64, 0));
  EXPECT_EQ(cuMemcpyHtoA(flat, 0, in.data(), 64), CUDA_ERROR_INVALID_VALUE);  // two dimensions
}

TEST_F(array_copies, AsynchronousCopiesRunInTheOrderOfTheStream) {
  const CUarray a = create(shape(4096, 0, 0));
  const CUstream s = make_stream();
  void *pinned = nullptr;
  ASSERT_EQ(cuMemAllocHost(&pinned, 8192), CUDA_SUCCESS);
  auto *const bytes = static_cast<unsigned char *>(pinned);
  const bytes_t in = counting(4096);
  std::copy(in.begin(), in.end(), bytes);
  ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyHtoAAsync(a, 0, bytes, 4096, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyAtoHAsync(bytes + 4096, a, 0, 4096, s), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(hostcuda_release(s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_TRUE(std::equal(in.begin(), in.end(), bytes + 4096));
}

TEST_F(array_copies, RectanglesAndBoxes) {
  const bytes_t in = counting(std::size_t{12} * 5 * 4);
  const CUarray a = create(shape(12, 5, 4));
  CUDA_MEMCPY3D c = to_array(a, in.data(), 12, 5, 4);
  ASSERT_EQ(cuMemcpy3D(&c), CUDA_SUCCESS);
  EXPECT_EQ(contents(a, 12, 5, 4), in);
  // A box out of the middle of the array.
  bytes_t out(std::size_t{3} * 2 * 2);
  c = from_array(out.data(), a, 3, 2, 2);
  c.srcXInBytes = 4;
  c.srcY = 3;
  c.srcZ = 1;
  ASSERT_EQ(cuMemcpy3D(&c), CUDA_SUCCESS);
  for (std::size_t z = 0; z < 2; ++z)
    for (std::size_t y = 0; y < 2; ++y)
      for (std::size_t x = 0; x < 3; ++x)
        ASSERT_EQ(out[(z * 2 + y) * 3 + x], in[((z + 1) * 5 + y + 3) * 12 + x + 4]);
  c.srcY = 4;  // one row too many
  EXPECT_EQ(cuMemcpy3D(&c), CUDA_ERROR_INVALID_VALUE);
  c.srcY = 3;
  c.srcZ = 3;  // one slice too many
  EXPECT_EQ(cuMemcpy3D(&c), CUDA_ERROR_INVALID_VALUE);
  c.srcZ = 1;
  c.srcXInBytes = 10;  // a byte beyond the row
  EXPECT_EQ(cuMemcpy3D(&c), CUDA_ERROR_INVALID_VALUE);
  c.srcXInBytes = 4;
  c.srcLOD = 1;  // must be 0
  EXPECT_EQ(cuMemcpy3D(&c), CUDA_ERROR_INVALID_VALUE);

  // Between two arrays, and a rectangle of one slice.
  const CUarray b = create(shape(16, 8, 0));
  CUDA_MEMCPY2D flat{};
  flat.srcMemoryType = flat.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  flat.srcArray = a;
  flat.srcY = 1;
  flat.dstArray = b;
  flat.dstXInBytes = 2;
  flat.dstY = 3;
  flat.WidthInBytes = 12;
  flat.Height = 4;
  ASSERT_EQ(cuMemcpy2D(&flat), CUDA_SUCCESS);
  const bytes_t got = contents(b, 16, 8, 1);
  for (std::size_t y = 0; y < 4; ++y)
    for (std::size_t x = 0; x < 12; ++x) ASSERT_EQ(got[(y + 3) * 16 + x + 2], in[(y + 1) * 12 + x]);
  flat.dstArray = create(shape(16, 8, 0, 0, CU_AD_FORMAT_UNSIGNED_INT16, 1));
  EXPECT_EQ(cuMemcpy2D(&flat), CUDA_ERROR_INVALID_VALUE);  // other elements
}

TEST_F(array_copies, LayersOfLinesAreSlices) {
  const CUarray a = create(shape(32, 0, 4, CUDA_ARRAY3D_LAYERED));
  const bytes_t in = counting(std::size_t{32} * 4);
  CUDA_MEMCPY3D c = to_array(a, in.data(), 32, 1, 4);
  ASSERT_EQ(cuMemcpy3D(&c), CUDA_SUCCESS);
  EXPECT_EQ(contents(a, 32, 1, 4), in);
  c = to_array(a, in.data(), 32, 2, 2);  // a layer has one row
  EXPECT_EQ(cuMemcpy3D(&c), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(array_copies, DestroyingUnderUnfinishedWorkIsAViolation) {
  start("profile=h200,lenient");
  const CUarray a = create(shape(4096, 0, 0));
  const CUstream s = make_stream();
  void *pinned = nullptr;
  ASSERT_EQ(cuMemAllocHost(&pinned, 4096), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyAtoHAsync(pinned, a, 0, 4096, s), CUDA_SUCCESS);
  ASSERT_EQ(cuArrayDestroy(a), CUDA_SUCCESS);
  ASSERT_EQ(violations(), 1U);
  EXPECT_EQ(violation(0).kind, HOSTCUDA_USE_AFTER_FREE);
  EXPECT_NE(std::string(violation(0).first).find("cuMemcpyAtoHAsync"), std::string::npos);
  EXPECT_NE(std::string(violation(0).second).find("cuArrayDestroy"), std::string::npos);
}

TEST_F(array_copies, CopiesAreNodesOfGraphs) {
  const CUarray a = create(shape(64, 4, 0));
  bytes_t in = counting(256);
  const CUDA_MEMCPY3D c = to_array(a, in.data(), 64, 4, 1);
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  ASSERT_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &c, ctx_), CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  const bytes_t later = counting(256, 9);
  std::copy(later.begin(), later.end(), in.begin());  // a launch reads what is there then
  ASSERT_EQ(cuGraphLaunch(exec, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(contents(a, 64, 4, 1), in);

  // A captured copy is described by its array.
  const CUstream s = make_stream();
  ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  CUDA_MEMCPY3D captured = to_array(a, in.data(), 32, 2, 1);
  captured.dstXInBytes = 8;
  captured.dstY = 2;
  ASSERT_EQ(cuMemcpy3DAsync(&captured, s), CUDA_SUCCESS);
  CUgraph second = nullptr;
  ASSERT_EQ(cuStreamEndCapture(s, &second), CUDA_SUCCESS);
  std::size_t count = 1;
  ASSERT_EQ(cuGraphGetNodes(second, &node, &count), CUDA_SUCCESS);
  ASSERT_EQ(count, 1U);
  CUDA_MEMCPY3D got{};
  ASSERT_EQ(cuGraphMemcpyNodeGetParams(node, &got), CUDA_SUCCESS);
  EXPECT_EQ(got.dstMemoryType, CU_MEMORYTYPE_ARRAY);
  EXPECT_EQ(got.dstArray, a);
  EXPECT_EQ(got.dstXInBytes, 8U);
  EXPECT_EQ(got.dstY, 2U);
  ASSERT_EQ(cuGraphInstantiate(&exec, second, 0), CUDA_SUCCESS);
}

TEST_F(array_copies, HaveNoBytesOnAnUnbackedMachine) {
  start("unbacked");
  const CUarray a = create(shape(16384, 16384, 256));  // 64 GiB
  bytes_t in(256);
  const CUDA_MEMCPY3D c = to_array(a, in.data(), 16, 16, 1);
  EXPECT_EQ(cuMemcpy3D(&c), CUDA_SUCCESS);
  EXPECT_EQ(created(shape(16384, 16384, 16384)), CUDA_ERROR_OUT_OF_MEMORY);  // 4 TiB
}

}  // namespace
}  // namespace hostcuda_tests
