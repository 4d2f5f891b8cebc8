// Call counts, fault injection and modelled costs.
#include <cstdio>
#include <fstream>
#include <map>
#include <string>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

class fault : public machine_test {
 protected:
  static std::uint64_t calls(const char *name) {
    std::uint64_t n = 0;
    EXPECT_EQ(hostcuda_calls(name, &n), CUDA_SUCCESS) << name;
    return n;
  }
};

TEST_F(fault, CallsAreCountedWhateverTheirSuffix) {
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAlloc(&at, 10), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFree(at), CUDA_SUCCESS);
  EXPECT_EQ(calls("cuMemAlloc"), 1U);
  EXPECT_EQ(calls("cuMemAlloc_v2"), 1U);
  EXPECT_EQ(calls("cuMemFree"), 1U);
  EXPECT_GE(calls(nullptr), 5U);
  std::uint64_t n = 0;
  EXPECT_EQ(hostcuda_calls("cuNoSuchThing", &n), CUDA_ERROR_NOT_FOUND);
  std::map<std::string, std::uint64_t> seen;
  ASSERT_EQ(hostcuda_each_call(
                [](const char *name, uint64_t count, void *user) {
                  (*static_cast<std::map<std::string, std::uint64_t> *>(user))[name] = count;
                },
                &seen),
            CUDA_SUCCESS);
  EXPECT_EQ(seen["cuMemFree"], 1U);
}

TEST_F(fault, TheNthCallFailsOnce) {
  ASSERT_EQ(hostcuda_fail("cuMemAlloc", 2, CUDA_ERROR_OUT_OF_MEMORY), CUDA_SUCCESS);
  CUdeviceptr at = 0;
  EXPECT_EQ(cuMemAlloc(&at, 10), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&at, 10), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc(&at, 10), CUDA_SUCCESS);
  std::uint64_t fired = 0;
  ASSERT_EQ(hostcuda_faults_fired(&fired), CUDA_SUCCESS);
  EXPECT_EQ(fired, 1U);
  ASSERT_EQ(hostcuda_faults_fired(&fired), CUDA_SUCCESS);
  EXPECT_EQ(fired, 0U);
}

TEST_F(fault, FromTheNthOnUntilRemoved) {
  ASSERT_EQ(hostcuda_fail_from(nullptr, 2, CUDA_ERROR_UNKNOWN), CUDA_SUCCESS);
  CUdeviceptr at = 0;
  EXPECT_EQ(cuMemAlloc(&at, 10), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(at), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_UNKNOWN);
  const char *text = nullptr;
  EXPECT_EQ(cuGetErrorName(CUDA_ERROR_UNKNOWN, &text), CUDA_SUCCESS);  // never fails
  ASSERT_EQ(hostcuda_fail(nullptr, 0, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(at), CUDA_SUCCESS);
}

TEST_F(fault, CostsAddUp) {
  const std::string file = ::testing::TempDir() + "hostcuda_costs.txt";
  std::ofstream(file) << "# measured\ncuMemAlloc 1000 10\n cuMemFree 500 0 # each\n";
  start("costs=" + file);
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAlloc(&at, 4 * MiB), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFree(at), CUDA_SUCCESS);
  std::uint64_t ns = 0;
  ASSERT_EQ(hostcuda_modelled_ns(&ns), CUDA_SUCCESS);
  EXPECT_EQ(ns, 1000U + 40U + 500U);
  std::ofstream(file) << "cuMemAlloc fast\n";
  EXPECT_EQ(hostcuda_reset(("costs=" + file).c_str()), CUDA_ERROR_INVALID_VALUE);
  std::remove(file.c_str());
  EXPECT_EQ(hostcuda_reset(("costs=" + file).c_str()), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(fault, EveryErrorHasAName) {
  const char *name = nullptr;
  ASSERT_EQ(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &name), CUDA_SUCCESS);
  EXPECT_STREQ(name, "CUDA_ERROR_ILLEGAL_ADDRESS");
  ASSERT_EQ(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &name), CUDA_SUCCESS);
  EXPECT_STREQ(name, "out of memory");
  EXPECT_EQ(cuGetErrorName(static_cast<CUresult>(12345), &name), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(name, nullptr);
}

}  // namespace
}  // namespace hostcuda_tests
