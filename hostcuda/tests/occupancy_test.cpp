// Occupancy, on a machine with 64 warps, 32 blocks, 65,536 registers and 228 KiB of shared memory for
// each of its 132 multiprocessors. Every kernel has 32 registers and no static shared memory.
#include <dlfcn.h>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

constexpr int KiB = 1024;

class occupancy : public machine_test {
 protected:
  void SetUp() override {
    start("profile=h200,kernels=skip");
    CUmodule m = nullptr;
    ASSERT_EQ(cuModuleLoadData(&m, ".version 8.0\n.entry f() { ret; }"), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleGetFunction(&f_, m, "f"), CUDA_SUCCESS);
  }

  int blocks(int threads, std::size_t shared = 0) {
    int out = -1;
    EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(&out, f_, threads, shared), CUDA_SUCCESS);
    return out;
  }

  CUfunction f_ = nullptr;
};

TEST_F(occupancy, TheSmallestLimitCounts) {
  EXPECT_EQ(blocks(1024), 2);  // threads
  EXPECT_EQ(blocks(768), 2);
  EXPECT_EQ(blocks(256), 8);
  EXPECT_EQ(blocks(65), 21);  // of three warps
  EXPECT_EQ(blocks(1), 32);   // blocks
  EXPECT_EQ(blocks(256, 48 * KiB), 4);
  EXPECT_EQ(blocks(32, 27 * KiB), 8);  // 28 KiB with what is reserved for a block
  EXPECT_EQ(blocks(32, 28 * KiB), 7);
  EXPECT_EQ(blocks(1025), 0);
}

TEST_F(occupancy, SharedMemoryIsLimitedByTheFunction) {
  EXPECT_EQ(blocks(32, 100 * KiB), 0);
  ASSERT_EQ(cuFuncSetAttribute(f_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 200 * KiB),
            CUDA_SUCCESS);
  EXPECT_EQ(blocks(32, 100 * KiB), 2);
  EXPECT_EQ(blocks(32, 200 * KiB), 1);
}

TEST_F(occupancy, SuggestsTheLargestBlockOfTheBestOccupancy) {
  int grid = 0;
  int block = 0;
  ASSERT_EQ(cuOccupancyMaxPotentialBlockSize(&grid, &block, f_, nullptr, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(block, 1024);
  EXPECT_EQ(grid, 2 * 132);
  ASSERT_EQ(cuOccupancyMaxPotentialBlockSize(&grid, &block, f_, nullptr, 0, 100), CUDA_SUCCESS);
  EXPECT_EQ(block, 64);  // 100 threads would leave 448 of 2,048 unused, and 96 would leave 32
  EXPECT_EQ(grid, 32 * 132);
  const CUoccupancyB2DSize by_thread = [](int threads) { return std::size_t{200} * threads; };
  ASSERT_EQ(cuOccupancyMaxPotentialBlockSizeWithFlags(&grid, &block, f_, by_thread, 0, 0, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(block, 224);  // 5 blocks of 44,800 bytes; 160 threads reach 1,120 too
  EXPECT_EQ(grid, 5 * 132);
}

TEST_F(occupancy, TellsTheSharedMemoryThatIsLeft) {
  std::size_t bytes = 0;
  ASSERT_EQ(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, f_, 8, 256), CUDA_SUCCESS);
  EXPECT_EQ(bytes, 28160U);
  EXPECT_EQ(blocks(256, bytes), 8);
  EXPECT_LT(blocks(256, bytes + 1), 8);
  ASSERT_EQ(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, f_, 1, 256), CUDA_SUCCESS);
  EXPECT_EQ(bytes, 49152U);  // the limit of the function
  EXPECT_EQ(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, f_, 9, 256), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(occupancy, RefusesBadArguments) {
  int out = 0;
  EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(&out, f_, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(nullptr, f_, 1, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(&out, nullptr, 1, 0),
            CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&out, f_, 1, 0, 2),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                &out, f_, 1, 0, CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE),
            CUDA_SUCCESS);
}

TEST_F(occupancy, ACooperativeLaunchMustFit) {
  const auto run = [&](unsigned blocks_in_grid, unsigned shared) {
    return cuLaunchCooperativeKernel(f_, blocks_in_grid, 1, 1, 256, 1, 1, shared, nullptr, nullptr);
  };
  EXPECT_EQ(run(8 * 132, 0), CUDA_SUCCESS);
  EXPECT_EQ(run(8 * 132 + 1, 0), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  EXPECT_EQ(run(8 * 132, 48 * KiB), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
}

TEST_F(occupancy, TheProfilerIsAlwaysOff) {
  for (const char *name : {"cuProfilerStart", "cuProfilerStop"}) {
    const auto call = reinterpret_cast<CUresult (*)()>(dlsym(RTLD_DEFAULT, name));
    EXPECT_EQ(call(), CUDA_SUCCESS) << name;
  }
}

}  // namespace
}  // namespace hostcuda_tests
