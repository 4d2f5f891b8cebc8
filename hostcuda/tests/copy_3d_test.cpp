// Copies in three dimensions and in batches, pools by location, and host memory without a context.
#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

class copy_3d_test : public machine_test {
 protected:
  void SetUp() override {
    machine_test::SetUp();
    ASSERT_EQ(cuMemAlloc(&at_, 4096), CUDA_SUCCESS);
  }
  CUdeviceptr at_ = 0;
};

TEST_F(copy_3d_test, CopiesABoxOutOfABox) {
  unsigned char in[4096];
  for (int i = 0; i < 4096; ++i) in[i] = static_cast<unsigned char>(i * 7 + i / 256);
  ASSERT_EQ(cuMemcpyHtoD(at_, in, sizeof in), CUDA_SUCCESS);
  // 16 slices of 16 rows of 16 bytes; the box begins at (3, 2, 1).
  CUDA_MEMCPY3D c{};
  c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  c.srcDevice = at_;
  c.srcPitch = c.srcHeight = 16;
  c.srcXInBytes = 3;
  c.srcY = 2;
  c.srcZ = 1;
  c.dstMemoryType = CU_MEMORYTYPE_HOST;
  unsigned char out[5 * 4 * 6] = {};
  c.dstHost = out;
  c.WidthInBytes = 5;
  c.Height = 4;
  c.Depth = 6;
  ASSERT_EQ(cuMemcpy3D(&c), CUDA_SUCCESS);
  for (int z = 0; z < 6; ++z)
    for (int y = 0; y < 4; ++y)
      for (int x = 0; x < 5; ++x)
        ASSERT_EQ(out[(z * 4 + y) * 5 + x], in[((z + 1) * 16 + y + 2) * 16 + x + 3]);
  c.Depth = 16;  // one slice too many
  EXPECT_EQ(cuMemcpy3D(&c), CUDA_ERROR_INVALID_VALUE);
  c.Depth = 6;
  c.srcHeight = 5;  // fewer rows than the box needs
  EXPECT_EQ(cuMemcpy3D(&c), CUDA_ERROR_INVALID_VALUE);
  c.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  EXPECT_EQ(cuMemcpy3D(&c), CUDA_ERROR_INVALID_VALUE);  // there is no such array
}

TEST_F(copy_3d_test, PeersNeedTheirContexts) {
  unsigned char out[8] = {};
  CUDA_MEMCPY3D_PEER c{};
  c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  c.srcDevice = at_;
  c.dstMemoryType = CU_MEMORYTYPE_HOST;
  c.dstHost = out;
  c.WidthInBytes = 8;
  c.Height = c.Depth = 1;
  EXPECT_EQ(cuMemcpy3DPeer(&c), CUDA_ERROR_INVALID_CONTEXT);
  c.srcContext = ctx_;
  ASSERT_EQ(cuMemsetD8(at_, 4, 8), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpy3DPeer(&c), CUDA_SUCCESS);
  EXPECT_EQ(out[7], 4);
}

#if CUDA_VERSION >= 13000
TEST_F(copy_3d_test, ABatchIsCheckedBeforeItsFirstCopy) {
  unsigned char in[32] = {1, 2, 3}, out[32] = {};
  const CUstream s = make_stream();
  CUdeviceptr to[] = {at_, reinterpret_cast<CUdeviceptr>(out)};
  CUdeviceptr from[] = {reinterpret_cast<CUdeviceptr>(in), at_};
  std::size_t bytes[] = {32, 32}, first = 0;
  CUmemcpyAttributes how{};
  how.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  ASSERT_EQ(cuMemcpyBatchAsync(to, from, bytes, 2, &how, &first, 1, s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(out[2], 3);
  EXPECT_EQ(cuMemcpyBatchAsync(to, from, bytes, 2, &how, &first, 1, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  in[2] = 9;
  bytes[1] = MiB * 64;  // beyond the block
  EXPECT_EQ(cuMemcpyBatchAsync(to, from, bytes, 2, &how, &first, 1, s), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemcpyDtoH(out, at_, 32), CUDA_SUCCESS);
  EXPECT_EQ(out[2], 3);
}

TEST_F(copy_3d_test, PoolsOfALocation) {
  CUmemLocation here{};
  here.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = here;
  CUmemoryPool mine = nullptr, got = nullptr, standard = nullptr;
  ASSERT_EQ(cuMemPoolCreate(&mine, &props), CUDA_SUCCESS);
  ASSERT_EQ(cuMemGetDefaultMemPool(&standard, &here, props.allocType), CUDA_SUCCESS);
  ASSERT_EQ(cuMemGetMemPool(&got, &here, props.allocType), CUDA_SUCCESS);
  EXPECT_EQ(got, standard);
  ASSERT_EQ(cuMemSetMemPool(&here, props.allocType, mine), CUDA_SUCCESS);
  ASSERT_EQ(cuDeviceGetMemPool(&got, 0), CUDA_SUCCESS);
  EXPECT_EQ(got, mine);
  EXPECT_EQ(cuMemGetMemPool(&got, nullptr, props.allocType), CUDA_ERROR_INVALID_VALUE);
}
#endif

// Regression: the program of numba.cuda.close() frees its pinned memory without a context.
TEST_F(copy_3d_test, HostMemoryIsFreedWithoutAContext) {
  void *host = nullptr;
  ASSERT_EQ(cuMemAllocHost(&host, 4096), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeHost(host), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeHost(host), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocHost(&host, 4096), CUDA_ERROR_INVALID_CONTEXT);
}

}  // namespace
}  // namespace hostcuda_tests
