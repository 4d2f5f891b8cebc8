// kernels=skip: kernels without a host function are accepted, counted and not run.
#include <cstring>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

const unsigned char cubin[] = {0x7F, 'E', 'L', 'F', 2, 1, 1, 0};
const unsigned char fat_binary[] = {0x50, 0xED, 0x55, 0xBA, 1, 0, 0x10, 0};
constexpr const char *skip_ptx =
    ".version 8.0\n.target sm_80\n.entry two(.param .u64 a, .param .u32 b) { ret; }";

int taught_runs = 0;
void taught(const hostcuda_launch *) {
  ++taught_runs;
}

class skip : public machine_test {
 protected:
  void SetUp() override {
    start("profile=h200,kernels=skip");
    taught_runs = 0;
  }

  static std::uint64_t skipped() {
    hostcuda_counters c{};
    EXPECT_EQ(hostcuda_get_counters(&c), CUDA_SUCCESS);
    return c.skipped_launches;
  }

  static CUfunction find(const void *image, const char *name) {
    CUmodule m = nullptr;
    CUfunction f = nullptr;
    EXPECT_EQ(cuModuleLoadData(&m, image), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&f, m, name), CUDA_SUCCESS);
    return f;
  }

  static CUresult launch(CUfunction f, CUstream s = nullptr, void **params = nullptr) {
    return cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, s, params, nullptr);
  }
};

TEST_F(skip, KernelsOfMachineCodeAreCountedAndNotRun) {
  for (const void *image :
       {static_cast<const void *>(cubin), static_cast<const void *>(fat_binary)}) {
    const std::uint64_t before = skipped();
    const CUfunction f = find(image, "_Z3anyPf");
    ASSERT_EQ(launch(f), CUDA_SUCCESS);
    ASSERT_EQ(launch(f), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(skipped(), before + 2);
  }
  ASSERT_EQ(hostcuda_reset("kernels=skip"), CUDA_SUCCESS);
  EXPECT_EQ(skipped(), 0U);
}

TEST_F(skip, KernelsOfPtxAreSkippedUnderTheirNamesOnly) {
  CUmodule m = nullptr;
  CUfunction f = nullptr;
  ASSERT_EQ(cuModuleLoadData(&m, skip_ptx), CUDA_SUCCESS);
  EXPECT_EQ(cuModuleGetFunction(&f, m, "three"), CUDA_ERROR_NOT_FOUND);
  ASSERT_EQ(cuModuleGetFunction(&f, m, "two"), CUDA_SUCCESS);
  EXPECT_EQ(launch(f), CUDA_ERROR_INVALID_VALUE);  // it has parameters
  CUdeviceptr a = 0;
  unsigned b = 0;
  void *params[] = {&a, &b};
  EXPECT_EQ(launch(f, nullptr, params), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(skipped(), 1U);
}

TEST_F(skip, RegisteredKernelsRun) {
  ASSERT_EQ(hostcuda_register_kernel("taught", taught, 0, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(launch(find(cubin, "taught")), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(taught_runs, 1);
  EXPECT_EQ(skipped(), 0U);
}

TEST_F(skip, KernelsRegisteredAfterTheLookUpRun) {
  const CUfunction f = find(cubin, "taught_late");
  ASSERT_EQ(hostcuda_register_kernel("taught_late", taught, 0, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(launch(f), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(taught_runs, 1);
}

TEST_F(skip, GraphsSkipAtEachLaunch) {
  const CUstream s = make_stream();
  const CUfunction f = find(fat_binary, "captured");
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(launch(f, s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
  EXPECT_EQ(skipped(), 0U);
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(cuGraphLaunch(exec, s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(skipped(), 3U);
}

TEST_F(skip, BadLaunchesAreStillRefused) {
  const CUfunction f = find(cubin, "any");
  EXPECT_EQ(cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(f, reinterpret_cast<CUstream>(0x1230)), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(skip, IsASettingAndNotTheDefault) {
  const char *config = nullptr;
  ASSERT_EQ(hostcuda_config(&config), CUDA_SUCCESS);
  EXPECT_NE(std::strstr(config, "kernels=skip"), nullptr) << config;
  EXPECT_EQ(hostcuda_reset("kernels=run"), CUDA_ERROR_INVALID_VALUE);
  start("kernels=refuse");
  CUmodule m = nullptr;
  EXPECT_EQ(cuModuleLoadData(&m, cubin), CUDA_ERROR_NO_BINARY_FOR_GPU);
}

}  // namespace
}  // namespace hostcuda_tests
