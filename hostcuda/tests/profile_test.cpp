// Profiles: the limits and defects of each simulated machine.
#include <cstring>
#include <string>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

constexpr std::size_t kGiB = 1024 * MiB;

class profile : public machine_test {
 protected:
  static int attribute(CUdevice_attribute which) {
    int v = -1;
    EXPECT_EQ(cuDeviceGetAttribute(&v, which, 0), CUDA_SUCCESS) << which;
    return v;
  }

  static CUresult try_create(CUmemAllocationProp *out_prop, CUmemGenericAllocationHandle *h,
                             bool rdma) {
    CUmemAllocationProp p{};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.allocFlags.gpuDirectRDMACapable = rdma ? 1 : 0;
    if (out_prop != nullptr) *out_prop = p;
    return cuMemCreate(h, kPage, &p, 0);
  }
};

TEST_F(profile, CommonAttributesAreTheSameInAllProfiles) {
  for (const char *name :
       {"h200", "a100", "multi:4", "wsl2", "mig", "vgpu-no-vmm", "old-driver-450", "integrated"}) {
    start(std::string("profile=") + name);
    const char *config = nullptr;
    ASSERT_EQ(hostcuda_config(&config), CUDA_SUCCESS);
    EXPECT_NE(std::strstr(config, name), nullptr) << config;
    EXPECT_EQ(hostcuda_reset(std::string(config).c_str()), CUDA_SUCCESS) << config;
    start(std::string("profile=") + name);
    char text[100];
    EXPECT_EQ(cuDeviceGetName(text, sizeof text, 0), CUDA_SUCCESS);
    std::size_t total = 0;
    EXPECT_EQ(cuDeviceTotalMem(&total, 0), CUDA_SUCCESS);
    EXPECT_EQ(total % kPage, 0U) << name;
    int value = 0;
    for (int a = 1; a <= 111; ++a)
      EXPECT_EQ(cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(a), 0), CUDA_SUCCESS)
          << name << ' ' << a;
    EXPECT_EQ(cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(100000), 0),
              CUDA_ERROR_INVALID_VALUE);
    CUdevice d = 0;
    EXPECT_EQ(cuDeviceGet(&d, 31), CUDA_ERROR_INVALID_DEVICE);
    char bus[32];
    ASSERT_EQ(cuDeviceGetPCIBusId(bus, sizeof bus, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceGetByPCIBusId(&d, bus), CUDA_SUCCESS);
    EXPECT_EQ(d, 0);
  }
}

// CUDA Runtime API, cudaDeviceProp::integrated: "Device is integrated as opposed to discrete".
TEST_F(profile, IntegratedDevicesSayThatTheirMemoryIsTheHosts) {
  for (const bool integrated : {false, true}) {
    start(integrated ? "profile=integrated" : "profile=h200");
    int value = -1;
    ASSERT_EQ(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_INTEGRATED, 0), CUDA_SUCCESS);
    EXPECT_EQ(value, integrated ? 1 : 0);
  }
}

TEST_F(profile, SeveralDevices) {
  start("profile=multi:8");
  int count = 0;
  ASSERT_EQ(cuDeviceGetCount(&count), CUDA_SUCCESS);
  EXPECT_EQ(count, 8);
  EXPECT_EQ(hostcuda_reset("profile=multi:0"), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(hostcuda_reset("profile=multi:99"), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(profile, Wsl2AdvertisesUnsupportedFeatures) {
  start("profile=wsl2");
  CUdeviceptr at = 0;
  EXPECT_EQ(cuMemAddressReserve(&at, 32 * kGiB, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuMemAddressReserve(&at, 16 * kGiB, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED), 1);
  CUmemGenericAllocationHandle h = 0;
  ASSERT_EQ(try_create(nullptr, &h, true), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(at, kPage, 0, h, 0), CUDA_SUCCESS);
  CUmemAccessDesc d{};
  d.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  d.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  EXPECT_EQ(cuMemSetAccess(at, kPage, &d, 1), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES), 1);
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemoryPool p = nullptr;
  EXPECT_EQ(cuMemPoolCreate(&p, &props), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(profile, VgpuHasNoVirtualMemoryManagement) {
  start("profile=vgpu-no-vmm");
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), 0);
  CUdeviceptr at = 0;
  EXPECT_EQ(cuMemAddressReserve(&at, kPage, 0, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
  CUmemGenericAllocationHandle h = 0;
  EXPECT_EQ(try_create(nullptr, &h, false), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemAllocAsync(&at, 10, nullptr), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemAlloc(&at, 10), CUDA_SUCCESS);
}

TEST_F(profile, AnOldDriverLacksNewerFunctions) {
  start("profile=old-driver-450");
  int version = 0;
  ASSERT_EQ(cuDriverGetVersion(&version), CUDA_SUCCESS);
  EXPECT_EQ(version, 11000);
  CUdeviceptr at = 0;
  EXPECT_EQ(cuMemAllocAsync(&at, 10, nullptr), CUDA_ERROR_NOT_SUPPORTED);
  CUmemGenericAllocationHandle h = 0;
  EXPECT_EQ(try_create(nullptr, &h, false), CUDA_SUCCESS);
  int value = 0;
  EXPECT_EQ(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(profile, ABadConfigurationChangesNothing) {
  start("profile=a100");
  for (const char *bad : {"profile=h300", "memory=lots", "schedule=random", "mappings=0", "wat",
                          "memory=", "schedule=seeded:x", "backed=no"})
    EXPECT_EQ(hostcuda_reset(bad), CUDA_ERROR_INVALID_VALUE) << bad;
  CUdeviceptr at = 0;
  EXPECT_EQ(cuMemAlloc(&at, 10), CUDA_SUCCESS);
}

TEST_F(profile, ADeviceIsDescribedWithoutCuInit) {
  start("profile=multi:2,memory=1G");
  ASSERT_EQ(hostcuda_reset("profile=multi:2,memory=1G"), CUDA_SUCCESS);  // before cuInit again
  hostcuda_device d{};
  ASSERT_EQ(hostcuda_get_device(1, &d), CUDA_SUCCESS);
  EXPECT_STREQ(d.name, "hostcuda H200");
  EXPECT_EQ(d.total_bytes, 1024 * MiB);
  EXPECT_EQ(d.used_bytes + d.occupied_bytes + d.contexts, 0U);
  EXPECT_EQ(hostcuda_get_device(2, &d), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(hostcuda_get_device(0, nullptr), CUDA_ERROR_INVALID_VALUE);
  std::uint64_t calls = 1;
  ASSERT_EQ(hostcuda_calls(nullptr, &calls), CUDA_SUCCESS);
  EXPECT_EQ(calls, 0U);
  start("profile=multi:2,memory=1G");
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAlloc(&at, 4 * MiB), CUDA_SUCCESS);
  ASSERT_EQ(hostcuda_occupy(0, 8 * MiB), CUDA_SUCCESS);
  ASSERT_EQ(hostcuda_get_device(0, &d), CUDA_SUCCESS);
  EXPECT_EQ(d.used_bytes, 4 * MiB);
  EXPECT_EQ(d.occupied_bytes, 8 * MiB);
  EXPECT_EQ(d.contexts, 1U);
}

TEST_F(profile, ResetIsComplete) {
  for (int i = 0; i < 100; ++i) {
    start(i % 2 == 0 ? "profile=h200" : "profile=multi:2");
    const CUdeviceptr at = reserve(8 * kPage);
    map(at, create(2 * kPage), 2 * kPage);
    CUdeviceptr other = 0;
    ASSERT_EQ(cuMemAlloc(&other, 1000), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAllocAsync(&other, 1000, nullptr), CUDA_SUCCESS);
    void *host = nullptr;
    ASSERT_EQ(cuMemAllocHost(&host, 1000), CUDA_SUCCESS);
  }
  ASSERT_EQ(hostcuda_reset("profile=h200"), CUDA_SUCCESS);
  hostcuda_counters c{};
  ASSERT_EQ(hostcuda_get_counters(&c), CUDA_SUCCESS);
  EXPECT_EQ(c.calls, 0U);
  EXPECT_EQ(c.physical_bytes, 0U);
  EXPECT_EQ(c.live_reservations, 0U);
  EXPECT_EQ(c.live_contexts, 0U);
  CUcontext current = nullptr;
  EXPECT_EQ(cuCtxGetCurrent(&current), CUDA_ERROR_NOT_INITIALIZED);
}

}  // namespace
}  // namespace hostcuda_tests
