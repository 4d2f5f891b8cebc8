// Lazy machines allocate host memory on first touch and otherwise behave as backed ones.
#include <fstream>
#include <string>
#include <vector>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

constexpr std::size_t GiB = std::size_t{1} << 30;

class lazy : public machine_test {
 protected:
  void SetUp() override { start("profile=h200,lazy"); }

  // Bytes of shared memory in the page tables of this process. Device memory is shared memory.
  static std::size_t resident() {
    std::ifstream in("/proc/self/status");
    for (std::string line; std::getline(in, line);) {
      if (line.rfind("RssShmem:", 0) == 0) return std::stoul(line.substr(9)) * 1024;
    }
    ADD_FAILURE() << "no RssShmem";
    return 0;
  }

  static CUmemAllocationProp on_device() {
    CUmemAllocationProp what{};
    what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    what.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return what;
  }
};

TEST_F(lazy, OnlyTouchedPagesUseHostMemory) {
  const std::size_t before = resident();
  const CUmemAllocationProp what = on_device();
  constexpr std::size_t bytes = 48 * GiB, page = 1 * GiB;
  CUdeviceptr range = 0, block = 0;
  ASSERT_EQ(cuMemAddressReserve(&range, bytes, 0, 0, 0), CUDA_SUCCESS);
  std::vector<CUmemGenericAllocationHandle> handles(bytes / page);
  for (std::size_t i = 0; i < handles.size(); ++i) {
    ASSERT_EQ(cuMemCreate(&handles[i], page, &what, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemMap(range + i * page, page, 0, handles[i], 0), CUDA_SUCCESS);
  }
  CUmemAccessDesc all{};
  all.location = what.location;
  all.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  ASSERT_EQ(cuMemSetAccess(range, bytes, &all, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc(&block, 40 * GiB), CUDA_SUCCESS);
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const auto stamp = static_cast<unsigned>(1000 + i);
    ASSERT_EQ(cuMemcpyHtoD(range + i * page + 12345, &stamp, 4), CUDA_SUCCESS);
    ASSERT_EQ(cuMemsetD32(block + i * 800 * MiB, stamp, 1), CUDA_SUCCESS);
  }
  for (std::size_t i = 0; i < handles.size(); ++i) {
    unsigned got[2] = {};
    ASSERT_EQ(cuMemcpyDtoH(&got[0], range + i * page + 12345, 4), CUDA_SUCCESS);
    ASSERT_EQ(cuMemcpyDtoH(&got[1], block + i * 800 * MiB, 4), CUDA_SUCCESS);
    EXPECT_EQ(got[0], 1000 + i);
    EXPECT_EQ(got[1], 1000 + i);
  }
  EXPECT_LT(resident() - before, 8 * MiB);
  hostcuda_counters c{};
  ASSERT_EQ(hostcuda_get_counters(&c), CUDA_SUCCESS);
  EXPECT_EQ(c.physical_bytes, 88 * GiB);
}

TEST_F(lazy, ReusedMemoryIsZero) {
  for (int round = 0; round < 3; ++round) {
    CUdeviceptr block = 0;
    ASSERT_EQ(cuMemAlloc(&block, 4 * MiB), CUDA_SUCCESS);
    std::vector<unsigned char> got(4 * MiB, 1);
    ASSERT_EQ(cuMemcpyDtoH(got.data(), block, got.size()), CUDA_SUCCESS);
    EXPECT_EQ(got, std::vector<unsigned char>(4 * MiB)) << round;
    ASSERT_EQ(cuMemsetD8(block, 0xaa, 4 * MiB), CUDA_SUCCESS);
    ASSERT_EQ(cuMemFree(block), CUDA_SUCCESS);
  }
}

TEST_F(lazy, TheOracleDetectsViolations) {
  const CUmemAllocationProp what = on_device();
  CUmemAccessDesc all{};
  all.location = what.location;
  all.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUdeviceptr range = 0;
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemAddressReserve(&range, 2 * MiB, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemCreate(&handle, 2 * MiB, &what, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(range, 2 * MiB, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8(range, 1, 1), CUDA_ERROR_INVALID_VALUE);  // no access yet
  ASSERT_EQ(cuMemSetAccess(range, 2 * MiB, &all, 1), CUDA_SUCCESS);
  const CUstream s = make_stream();
  ASSERT_EQ(cuMemsetD8Async(range, 1, MiB, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemUnmap(range, 2 * MiB), CUDA_SUCCESS);
  hostcuda_counters c{};
  ASSERT_EQ(hostcuda_get_counters(&c), CUDA_SUCCESS);
  EXPECT_EQ(c.violations, 1U);
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(lazy, ItsNameIsPartOfTheConfiguration) {
  const char *text = nullptr;
  ASSERT_EQ(hostcuda_config(&text), CUDA_SUCCESS);
  const std::string config = text;
  EXPECT_NE(config.find(",lazy,"), std::string::npos) << config;
  ASSERT_EQ(hostcuda_reset(config.c_str()), CUDA_SUCCESS);
  ASSERT_EQ(hostcuda_config(&text), CUDA_SUCCESS);
  EXPECT_EQ(text, config);
}

}  // namespace
}  // namespace hostcuda_tests
