// Stream-ordered allocation and memory pools.
#include <vector>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

class pool : public machine_test {
 protected:
  static cuuint64_t attribute(CUmemoryPool p, CUmemPool_attribute which) {
    cuuint64_t v = 0;
    EXPECT_EQ(cuMemPoolGetAttribute(p, which, &v), CUDA_SUCCESS);
    return v;
  }

  static CUmemoryPool make_pool() {
    CUmemPoolProps props{};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemoryPool p = nullptr;
    EXPECT_EQ(cuMemPoolCreate(&p, &props), CUDA_SUCCESS);
    return p;
  }
};

TEST_F(pool, AllocatesAndFreesInStreamOrder) {
  const CUstream s = make_stream();
  CUmemoryPool p = nullptr;
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&p, 0), CUDA_SUCCESS);
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAllocAsync(&at, 3 * MiB, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(at, 0x77, 3 * MiB, s), CUDA_SUCCESS);
  std::vector<unsigned char> got(3 * MiB);
  ASSERT_EQ(cuMemcpyDtoHAsync(got.data(), at, got.size(), s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(at, s), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(at, s), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(got, std::vector<unsigned char>(3 * MiB, 0x77));
  EXPECT_EQ(attribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0U);
  EXPECT_EQ(attribute(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 3 * MiB);
}

TEST_F(pool, KeepsWhatTheThresholdAllowsAndTrims) {
  const CUmemoryPool p = make_pool();
  cuuint64_t keep = 64 * MiB;
  ASSERT_EQ(cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep), CUDA_SUCCESS);
  const CUstream s = make_stream();
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&at, 8 * MiB, p, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(at, s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 8 * MiB);
  CUdeviceptr again = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&again, 8 * MiB, p, s), CUDA_SUCCESS);
  EXPECT_EQ(again, at);
  ASSERT_EQ(cuMemPoolTrimTo(p, 0), CUDA_SUCCESS);
  EXPECT_EQ(attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 8 * MiB);  // in use
  ASSERT_EQ(cuMemFree(again), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolTrimTo(p, 0), CUDA_SUCCESS);
  EXPECT_EQ(attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0U);
  EXPECT_EQ(cuMemPoolDestroy(p), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolDestroy(p), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(pool, MemoryFreedWithoutAStreamGoesBackAtTheNextSynchronisation) {
  const CUstream s = make_stream();
  CUmemoryPool p = nullptr;
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&p, 0), CUDA_SUCCESS);
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAllocAsync(&at, 1, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFree(at), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0U);
}

TEST_F(pool, KeptMemoryYieldsToOtherAllocations) {
  start("memory=32M");
  const CUmemoryPool p = make_pool();
  cuuint64_t keep = ~cuuint64_t{0};
  ASSERT_EQ(cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep), CUDA_SUCCESS);
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&at, 30 * MiB, p, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(at, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&at, 30 * MiB), CUDA_SUCCESS);
}

TEST_F(pool, ADestroyedPoolLivesUntilItsLastBlock) {
  const CUmemoryPool p = make_pool();
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&at, MiB, p, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolDestroy(p), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8(at, 1, MiB), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAllocFromPoolAsync(&at, MiB, p, nullptr), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemFreeAsync(at, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  hostcuda_counters c{};
  ASSERT_EQ(hostcuda_get_counters(&c), CUDA_SUCCESS);
  EXPECT_EQ(c.physical_bytes, 0U);
}

TEST_F(pool, AccessOfPeers) {
  start("profile=multi:2");
  const CUmemoryPool p = make_pool();
  CUmemLocation there{};
  there.type = CU_MEM_LOCATION_TYPE_DEVICE;
  there.id = 1;
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  ASSERT_EQ(cuMemPoolGetAccess(&flags, p, &there), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  CUmemAccessDesc d{};
  d.location = there;
  d.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  ASSERT_EQ(cuMemPoolSetAccess(p, &d, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolGetAccess(&flags, p, &there), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

}  // namespace
}  // namespace hostcuda_tests
