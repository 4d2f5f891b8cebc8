// peers=none: devices cannot access each other's memory.
#include <cstring>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

class no_peers : public machine_test {
 protected:
  void SetUp() override {
    start("profile=multi:2,peers=none");
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&other_, 1), CUDA_SUCCESS);
  }

  static CUmemAccessDesc access_of_device(int device) {
    CUmemAccessDesc d{};
    d.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    d.location.id = device;
    d.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return d;
  }

  CUcontext other_ = nullptr;
};

TEST_F(no_peers, IsPartOfTheConfiguration) {
  const char *config = nullptr;
  ASSERT_EQ(hostcuda_config(&config), CUDA_SUCCESS);
  EXPECT_NE(std::strstr(config, ",peers=none"), nullptr) << config;
  EXPECT_EQ(hostcuda_reset("peers=some"), CUDA_ERROR_INVALID_VALUE);
  start("profile=multi:2,peers=all");
  int can = 0;
  ASSERT_EQ(cuDeviceCanAccessPeer(&can, 0, 1), CUDA_SUCCESS);
  EXPECT_EQ(can, 1);
}

TEST_F(no_peers, NoDeviceIsAPeer) {
  int can = 7;
  ASSERT_EQ(cuDeviceCanAccessPeer(&can, 0, 1), CUDA_SUCCESS);
  EXPECT_EQ(can, 0);
  can = 7;
  ASSERT_EQ(cuDeviceGetP2PAttribute(&can, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 1, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(can, 0);
  EXPECT_EQ(cuCtxEnablePeerAccess(other_, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  EXPECT_EQ(cuCtxDisablePeerAccess(other_), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
}

TEST_F(no_peers, OnlyTheOwningDeviceGetsAccess) {
  const CUdeviceptr at = reserve(MiB * 2);
  const CUmemGenericAllocationHandle h = create(MiB * 2);
  ASSERT_EQ(cuMemMap(at, MiB * 2, 0, h, 0), CUDA_SUCCESS);
  CUmemAccessDesc both[2] = {access_of_device(0), access_of_device(1)};
  EXPECT_EQ(cuMemSetAccess(at, MiB * 2, both, 2), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuMemsetD8(at, 1, 1), CUDA_ERROR_INVALID_VALUE) << "a refused call grants nothing";
  ASSERT_EQ(cuMemSetAccess(at, MiB * 2, both, 1), CUDA_SUCCESS);
  both[1].flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;  // removes access that was not granted
  EXPECT_EQ(cuMemSetAccess(at, MiB * 2, both, 2), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8(at, 1, 1), CUDA_SUCCESS);
}

TEST_F(no_peers, AllDevicesAccessHostMemory) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  CUmemGenericAllocationHandle h = 0;
  ASSERT_EQ(cuMemCreate(&h, MiB * 2, &prop, 0), CUDA_SUCCESS);
  const CUdeviceptr at = reserve(MiB * 2);
  ASSERT_EQ(cuMemMap(at, MiB * 2, 0, h, 0), CUDA_SUCCESS);
  const CUmemAccessDesc both[2] = {access_of_device(0), access_of_device(1)};
  EXPECT_EQ(cuMemSetAccess(at, MiB * 2, both, 2), CUDA_SUCCESS);
}

TEST_F(no_peers, OnlyTheOwningDeviceAccessesAPool) {
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
  const CUmemAccessDesc d = access_of_device(1);
  EXPECT_EQ(cuMemPoolSetAccess(pool, &d, 1), CUDA_ERROR_INVALID_DEVICE);
  CUmemLocation there = d.location;
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  ASSERT_EQ(cuMemPoolGetAccess(&flags, pool, &there), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

TEST_F(no_peers, CopiesGoThroughTheHost) {
  CUdeviceptr here = 0;
  CUdeviceptr there = 0;
  ASSERT_EQ(cuMemAlloc(&here, 4096), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8(here, 5, 4096), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxPushCurrent(other_), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc(&there, 4096), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyPeer(there, other_, here, ctx_, 4096), CUDA_SUCCESS);
  unsigned char byte = 0;
  ASSERT_EQ(cuMemcpyDtoH(&byte, there + 4095, 1), CUDA_SUCCESS);
  EXPECT_EQ(byte, 5);
}

}  // namespace
}  // namespace hostcuda_tests
