// The limit of memory areas in a process (vm.max_map_count) is reported and never reached.
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

class areas : public machine_test {
 protected:
  static std::uint64_t ceiling() {
    const char *config = nullptr;
    EXPECT_EQ(hostcuda_config(&config), CUDA_SUCCESS);
    const char *at = std::strstr(config, ",mappings=");
    return at == nullptr ? 0 : std::strtoull(at + std::strlen(",mappings="), nullptr, 10);
  }

  static std::uint64_t kernel_limit() {
    std::uint64_t n = 0;
    std::ifstream("/proc/sys/vm/max_map_count") >> n;
    return n;
  }
};

TEST_F(areas, BackedCeilingIsBelowTheKernelLimit) {
  EXPECT_GT(ceiling(), 0U);
  EXPECT_LT(ceiling(), kernel_limit());
  start("mappings=100000000000");
  EXPECT_LT(ceiling(), kernel_limit());
  start("mappings=1000");
  EXPECT_EQ(ceiling(), 1000U);
  start("mappings=100000000000,unbacked");
  EXPECT_EQ(ceiling(), 100000000000U);
}

// Without a reserve of areas, none of these mappings could be unmapped: each mapping and each hole
// is an area.
TEST_F(areas, MappingFailsWhileUnmapStillWorks) {
  const std::uint64_t most = kernel_limit();
  if (most > 200000) GTEST_SKIP() << "vm.max_map_count is " << most << ": too many to try";
  const CUdeviceptr at = reserve(2 * most * kPage);
  const CUmemGenericAllocationHandle h = create(kPage);
  std::uint64_t made = 0;
  CUresult last = CUDA_SUCCESS;
  for (; made < most; ++made)
    if ((last = cuMemMap(at + 2 * made * kPage, kPage, 0, h, 0)) != CUDA_SUCCESS) break;
  EXPECT_EQ(last, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_GT(made, most / 4);
  EXPECT_EQ(cuMemMap(at + 2 * made * kPage, kPage, 0, h, 0), CUDA_ERROR_OUT_OF_MEMORY);
  std::uint64_t stuck = 0;
  for (std::uint64_t i = 0; i < made; ++i)
    if (cuMemUnmap(at + 2 * i * kPage, kPage) != CUDA_SUCCESS) ++stuck;
  EXPECT_EQ(stuck, 0U);
  map(at, h, kPage);  // areas are available again
  EXPECT_EQ(cuMemsetD8(at, 1, kPage), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(at, kPage), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(at, 2 * most * kPage), CUDA_SUCCESS);
}

}  // namespace
}  // namespace hostcuda_tests
