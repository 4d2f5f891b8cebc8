// Libraries, their kernels, and functions of modules.
#include <cstdio>
#include <cstring>
#include <fstream>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

constexpr const char *library_ptx = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .entry store(
  .param .u64 .ptr .global .align 4 store_param_0,
  .param .u32 store_param_1
) { ret; }
.visible .entry layout(
  .param .u8 a, .param .align 8 .b8 b[12], .param .f16 c, .param .u64 d
) .maxntid 128 { ret; }
)";

void store(const hostcuda_launch *launch) {
  CUdeviceptr at = 0;
  std::uint32_t value = 0;
  std::memcpy(&at, launch->params[0], sizeof at);
  std::memcpy(&value, launch->params[1], sizeof value);
  if (void *word = hostcuda_access(at, 4, 1)) std::memcpy(word, &value, 4);
}

class library : public machine_test {
 protected:
  void SetUp() override {
    machine_test::SetUp();
    const std::size_t sizes[] = {8, 4};
    ASSERT_EQ(hostcuda_register_kernel("store", store, 2, sizes), CUDA_SUCCESS);
    ASSERT_EQ(load(&library_), CUDA_SUCCESS);
    ASSERT_EQ(cuLibraryGetKernel(&store_, library_, "store"), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAlloc(&at_, 4096), CUDA_SUCCESS);
  }

  static CUresult load(CUlibrary *out, const void *image = library_ptx) {
    return cuLibraryLoadData(out, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
  }

  CUresult launch(CUfunction f, std::uint32_t value, CUstream s = nullptr) {
    void *params[] = {&at_, &value};
    return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, params, nullptr);
  }

  std::uint32_t word() {
    std::uint32_t v = 0;
    EXPECT_EQ(cuMemcpyDtoH(&v, at_, 4), CUDA_SUCCESS);
    return v;
  }

  // A context, which is current then.
  static CUcontext make_context() {
    CUcontext made = nullptr;
#if CUDA_VERSION >= 13000
    EXPECT_EQ(cuCtxCreate(&made, nullptr, 0, 0), CUDA_SUCCESS);
#else
    EXPECT_EQ(cuCtxCreate(&made, 0, 0), CUDA_SUCCESS);
#endif
    return made;
  }

  CUlibrary library_ = nullptr;
  CUkernel store_ = nullptr;
  CUdeviceptr at_ = 0;
};

TEST_F(library, AKernelIsLaunchedAsAFunction) {
  ASSERT_EQ(launch(reinterpret_cast<CUfunction>(store_), 7), CUDA_SUCCESS);
  EXPECT_EQ(word(), 7U);
  CUfunction f = nullptr;
  ASSERT_EQ(cuKernelGetFunction(&f, store_), CUDA_SUCCESS);
  ASSERT_EQ(launch(f, 8), CUDA_SUCCESS);
  EXPECT_EQ(word(), 8U);
}

TEST_F(library, AKernelRunsInTheContextOfTheStream) {
  const CUcontext other = make_context();
  const CUstream s = make_stream();
  ASSERT_EQ(cuCtxSetCurrent(ctx_), CUDA_SUCCESS);
  ASSERT_EQ(launch(reinterpret_cast<CUfunction>(store_), 9, s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(word(), 9U);
  CUfunction here = nullptr;
  ASSERT_EQ(cuKernelGetFunction(&here, store_), CUDA_SUCCESS);
  EXPECT_EQ(launch(here, 1, s), CUDA_ERROR_INVALID_HANDLE);  // a function of another context
  ASSERT_EQ(cuCtxDestroy(other), CUDA_SUCCESS);
  EXPECT_EQ(launch(here, 10), CUDA_SUCCESS);
  EXPECT_EQ(word(), 10U);
}

TEST_F(library, AKernelHasNoFunctionInADestroyedContext) {
  const CUcontext other = make_context();
  ASSERT_EQ(cuCtxPushCurrent(ctx_), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxDestroy(other), CUDA_SUCCESS);
  CUcontext popped = nullptr;
  ASSERT_EQ(cuCtxPopCurrent(&popped), CUDA_SUCCESS);  // the destroyed context is current now
  CUmodule m = nullptr;
  EXPECT_EQ(cuFuncGetModule(&m, reinterpret_cast<CUfunction>(store_)), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(cuCtxSetCurrent(ctx_), CUDA_SUCCESS);
  EXPECT_EQ(cuFuncGetModule(&m, reinterpret_cast<CUfunction>(store_)), CUDA_SUCCESS);
}

TEST_F(library, HasOneModuleInEachContext) {
  CUmodule first = nullptr;
  CUmodule again = nullptr;
  CUmodule owner = nullptr;
  CUfunction f = nullptr;
  CUfunction by_module = nullptr;
  ASSERT_EQ(cuLibraryGetModule(&first, library_), CUDA_SUCCESS);
  ASSERT_EQ(cuLibraryGetModule(&again, library_), CUDA_SUCCESS);
  EXPECT_EQ(first, again);
  ASSERT_EQ(cuKernelGetFunction(&f, store_), CUDA_SUCCESS);
  ASSERT_EQ(cuFuncGetModule(&owner, f), CUDA_SUCCESS);
  EXPECT_EQ(owner, first);
  ASSERT_EQ(cuModuleGetFunction(&by_module, first, "store"), CUDA_SUCCESS);
  EXPECT_EQ(by_module, f);
  EXPECT_EQ(cuModuleUnload(first), CUDA_ERROR_NOT_PERMITTED);
}

TEST_F(library, NeedsNoContext) {
  ASSERT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  CUlibrary other = nullptr;
  CUkernel kernel = nullptr;
  CUfunction f = nullptr;
  CUmodule m = nullptr;
  std::size_t offset = 0;
  int value = 0;
  ASSERT_EQ(load(&other), CUDA_SUCCESS);
  ASSERT_EQ(cuLibraryGetKernel(&kernel, other, "store"), CUDA_SUCCESS);
  EXPECT_NE(kernel, store_);
  EXPECT_EQ(cuKernelGetParamInfo(kernel, 1, &offset, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(offset, 8U);
  EXPECT_EQ(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuKernelGetFunction(&f, kernel), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuLibraryGetModule(&m, other), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(library, ListsItsKernels) {
  unsigned count = 0;
  ASSERT_EQ(cuLibraryGetKernelCount(&count, library_), CUDA_SUCCESS);
  ASSERT_EQ(count, 2U);
  CUkernel kernels[3] = {};
  ASSERT_EQ(cuLibraryEnumerateKernels(kernels, 3, library_), CUDA_SUCCESS);
  EXPECT_EQ(kernels[0], store_);
  EXPECT_EQ(kernels[2], nullptr);
  const char *name = nullptr;
  CUlibrary owner = nullptr;
  ASSERT_EQ(cuKernelGetName(&name, kernels[1]), CUDA_SUCCESS);
  EXPECT_STREQ(name, "layout");
  ASSERT_EQ(cuKernelGetLibrary(&owner, kernels[1]), CUDA_SUCCESS);
  EXPECT_EQ(owner, library_);
  // It is listed, but nothing is registered to run.
  EXPECT_EQ(cuLaunchKernel(reinterpret_cast<CUfunction>(kernels[1]), 1, 1, 1, 1, 1, 1, 0, nullptr,
                           nullptr, nullptr),
            CUDA_ERROR_NOT_FOUND);
}

TEST_F(library, UnloadingEndsItsHandles) {
  CUfunction f = nullptr;
  const char *name = nullptr;
  ASSERT_EQ(cuKernelGetFunction(&f, store_), CUDA_SUCCESS);
  ASSERT_EQ(cuLibraryUnload(library_), CUDA_SUCCESS);
  EXPECT_EQ(cuLibraryUnload(library_), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuLibraryUnload(nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuKernelGetName(&name, store_), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(launch(f, 1), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(launch(reinterpret_cast<CUfunction>(store_), 1), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuLibraryGetKernel(&store_, library_, "store"), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(library, RefusesBadArguments) {
  CUlibrary other = nullptr;
  CUkernel kernel = nullptr;
  CUdeviceptr at = 0;
  const char *name = nullptr;
  const unsigned char elf[] = {0x7F, 'E', 'L', 'F', 2, 1, 1, 0};
  EXPECT_EQ(load(&other, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(load(&other, "hello"), CUDA_ERROR_INVALID_PTX);
  EXPECT_EQ(load(&other, elf), CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(cuLibraryLoadData(&other, library_ptx, nullptr, nullptr, 1, nullptr, nullptr, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLibraryGetKernel(&kernel, library_, "nobody"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuLibraryGetKernel(nullptr, library_, "store"), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuKernelGetName(&name, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuKernelGetName(nullptr, store_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLibraryGetGlobal(&at, nullptr, library_, "v"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuLibraryGetManaged(&at, nullptr, library_, "v"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuLibraryGetGlobal(nullptr, nullptr, library_, "v"), CUDA_ERROR_INVALID_VALUE);
  CUlibraryOption preserved = CU_LIBRARY_BINARY_IS_PRESERVED;
  EXPECT_EQ(
      cuLibraryLoadFromFile(&other, "/nonexistent", nullptr, nullptr, 0, &preserved, nullptr, 1),
      CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLibraryLoadFromFile(&other, "/nonexistent", nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_ERROR_FILE_NOT_FOUND);
}

TEST_F(library, LoadsFromAFile) {
  const std::string path = ::testing::TempDir() + "/library_test.ptx";
  std::ofstream(path) << library_ptx;
  CUlibrary other = nullptr;
  unsigned count = 0;
  ASSERT_EQ(cuLibraryLoadFromFile(&other, path.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  std::remove(path.c_str());
  ASSERT_EQ(cuLibraryGetKernelCount(&count, other), CUDA_SUCCESS);
  EXPECT_EQ(count, 2U);
}

TEST_F(library, KernelAttributesHoldOnADevice) {
  start("profile=multi:2");
  ASSERT_EQ(load(&library_), CUDA_SUCCESS);
  ASSERT_EQ(cuLibraryGetKernel(&store_, library_, "store"), CUDA_SUCCESS);
  constexpr auto what = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  CUfunction f = nullptr;
  int value = 0;
  ASSERT_EQ(cuKernelGetFunction(&f, store_), CUDA_SUCCESS);
  ASSERT_EQ(cuKernelSetAttribute(what, 65536, store_, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuFuncGetAttribute(&value, what, f), CUDA_SUCCESS);
  EXPECT_EQ(value, 65536);
  ASSERT_EQ(cuKernelGetAttribute(&value, what, store_, 1), CUDA_SUCCESS);
  EXPECT_EQ(value, 49152);
  EXPECT_EQ(cuKernelGetAttribute(&value, what, store_, 2), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuKernelSetAttribute(what, -1, store_, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuKernelSetCacheConfig(store_, CU_FUNC_CACHE_PREFER_L1, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuFuncSetCacheConfig(f, CU_FUNC_CACHE_PREFER_L1), CUDA_SUCCESS);
}

TEST_F(library, ParametersAreLaidOutAsThePtxDeclaresThem) {
  CUkernel kernels[2] = {};
  ASSERT_EQ(cuLibraryEnumerateKernels(kernels, 2, library_), CUDA_SUCCESS);
  const std::size_t expected[][2] = {{0, 1}, {8, 12}, {20, 2}, {24, 8}};
  for (std::size_t i = 0; i < 4; ++i) {
    std::size_t offset = 99;
    std::size_t bytes = 99;
    ASSERT_EQ(cuKernelGetParamInfo(kernels[1], i, &offset, &bytes), CUDA_SUCCESS) << i;
    EXPECT_EQ(offset, expected[i][0]) << i;
    EXPECT_EQ(bytes, expected[i][1]) << i;
  }
  std::size_t offset = 0;
  EXPECT_EQ(cuKernelGetParamInfo(kernels[1], 4, &offset, nullptr), CUDA_ERROR_INVALID_VALUE);
  CUfunction f = nullptr;
  ASSERT_EQ(cuKernelGetFunction(&f, store_), CUDA_SUCCESS);
  EXPECT_EQ(cuFuncGetParamInfo(f, 1, &offset, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(offset, 8U);
  EXPECT_EQ(cuFuncGetParamInfo(f, 2, &offset, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(library, AModuleListsItsFunctions) {
  CUmodule m = nullptr;
  CUfunction functions[2] = {};
  CUfunction f = nullptr;
  unsigned count = 0;
  ASSERT_EQ(cuModuleLoadData(&m, library_ptx), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleGetFunctionCount(&count, m), CUDA_SUCCESS);
  EXPECT_EQ(count, 2U);
  ASSERT_EQ(cuModuleEnumerateFunctions(functions, 2, m), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleGetFunction(&f, m, "store"), CUDA_SUCCESS);
  EXPECT_EQ(functions[0], f);
  CUfunctionLoadingState state{};
  CUmoduleLoadingMode mode{};
  ASSERT_EQ(cuFuncLoad(f), CUDA_SUCCESS);
  ASSERT_EQ(cuFuncIsLoaded(&state, f), CUDA_SUCCESS);
  EXPECT_EQ(state, CU_FUNCTION_LOADING_STATE_LOADED);
  ASSERT_EQ(cuModuleGetLoadingMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_MODULE_EAGER_LOADING);
  // Listed under kernels=refuse, but still not found by name.
  EXPECT_EQ(cuModuleGetFunction(&f, m, "layout"), CUDA_ERROR_NOT_FOUND);
}

}  // namespace
}  // namespace hostcuda_tests
