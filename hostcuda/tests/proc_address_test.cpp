// cuGetProcAddress: symbols by name and version.
#include <dlfcn.h>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

// Defined here, because the name in the header depends on the CUDA version.
using get_proc = CUresult (*)(const char *, void **, int, cuuint64_t, int *);

class proc_address : public machine_test {
 protected:
  static void *by_name(const char *symbol) { return dlsym(RTLD_DEFAULT, symbol); }

  static void *ask(const char *name, int version, cuuint64_t flags = 0) {
    void *out = nullptr;
    const auto get = reinterpret_cast<get_proc>(by_name("cuGetProcAddress_v2"));
    EXPECT_EQ(get(name, &out, version, flags, nullptr), CUDA_SUCCESS) << name;
    return out;
  }

  static int status_of(const char *name, int version) {
    void *out = nullptr;
    int status = -1;
    const auto get = reinterpret_cast<get_proc>(by_name("cuGetProcAddress_v2"));
    EXPECT_EQ(get(name, &out, version, 0, &status), CUDA_SUCCESS) << name;
    EXPECT_EQ(out == nullptr, status != 0) << name;
    return status;
  }
};

TEST_F(proc_address, TheVersionPicksTheSignature) {
  EXPECT_EQ(ask("cuMemAlloc", 3020), by_name("cuMemAlloc_v2"));
  EXPECT_EQ(ask("cuCtxSynchronize", 12000), by_name("cuCtxSynchronize"));
  EXPECT_EQ(ask("cuCtxSynchronize", 13000), by_name("cuCtxSynchronize_v2"));
  EXPECT_EQ(ask("cuCtxGetDevice", 2000), by_name("cuCtxGetDevice"));
  EXPECT_EQ(ask("cuCtxGetDevice", 13000), by_name("cuCtxGetDevice_v2"));
  EXPECT_EQ(ask("cuCtxCreate", 3020), by_name("cuCtxCreate_v2"));
  EXPECT_EQ(ask("cuCtxCreate", 11040), by_name("cuCtxCreate_v3"));
  EXPECT_EQ(ask("cuDevicePrimaryCtxRelease", 11000), by_name("cuDevicePrimaryCtxRelease_v2"));
  EXPECT_EQ(ask("cuGetProcAddress", 11030), by_name("cuGetProcAddress"));
  EXPECT_EQ(ask("cuGetProcAddress", 12000), by_name("cuGetProcAddress_v2"));
}

TEST_F(proc_address, PerThreadDefaultStreamSelectsThePerThreadVariant) {
  constexpr cuuint64_t per_thread = 2;
  EXPECT_EQ(ask("cuMemcpyHtoD", 12000, per_thread), by_name("cuMemcpyHtoD_v2_ptds"));
  EXPECT_EQ(ask("cuMemcpyHtoDAsync", 12000, per_thread), by_name("cuMemcpyHtoDAsync_v2_ptsz"));
  EXPECT_EQ(ask("cuMemAllocAsync", 12000, per_thread), by_name("cuMemAllocAsync_ptsz"));
  EXPECT_EQ(ask("cuMemMap", 12000, per_thread), by_name("cuMemMap"));
  EXPECT_EQ(ask("cuMemcpyHtoD", 12000), by_name("cuMemcpyHtoD_v2"));
}

TEST_F(proc_address, UnknownSymbols) {
  EXPECT_EQ(status_of("cuNoSuchThing", 12000), 1);
  EXPECT_EQ(status_of("cuMemMap", 10010), 2);
  EXPECT_EQ(status_of("cuMemMap", 10020), 0);
  void *out = nullptr;
  const auto get = reinterpret_cast<get_proc>(by_name("cuGetProcAddress_v2"));
  EXPECT_EQ(get("cuInit", &out, 99000, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(get(nullptr, &out, 12000, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(get("cuInit", &out, 12000, 64, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(proc_address, AnOldDriverHasNoLookup) {
  start("profile=old-driver-450");
  void *out = nullptr;
  const auto get = reinterpret_cast<get_proc>(by_name("cuGetProcAddress_v2"));
  EXPECT_EQ(get("cuInit", &out, 2000, 0, nullptr), CUDA_ERROR_NOT_FOUND);
}

TEST_F(proc_address, BeforeInit) {
  ASSERT_EQ(hostcuda_reset("profile=h200"), CUDA_SUCCESS);
  CUcontext marker = reinterpret_cast<CUcontext>(&marker);
  const CUcontext before = marker;
  EXPECT_EQ(cuCtxGetCurrent(&marker), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(marker, before);
  EXPECT_NE(ask("cuInit", 2000), nullptr);
  EXPECT_EQ(cuInit(1), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace hostcuda_tests
