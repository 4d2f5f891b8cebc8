#include <cstring>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

constexpr const char *ptx = R"(
// .entry commented_out
.version 8.0
.target sm_80
.address_size 64
/* .entry also_commented_out */
.visible .entry fill(
  .param .u64 fill_param_0, .param .u32 fill_param_1, .param .u32 fill_param_2
) { ret; }
.visible .entry nobody_registered_this() { ret; }
)";

void fill(const hostcuda_launch *launch) {
  CUdeviceptr at = 0;
  std::uint32_t count = 0;
  std::uint32_t value = 0;
  std::memcpy(&at, launch->params[0], sizeof at);
  std::memcpy(&count, launch->params[1], sizeof count);
  std::memcpy(&value, launch->params[2], sizeof value);
  auto *words = static_cast<std::uint32_t *>(hostcuda_access(at, count * 4, 1));
  if (words == nullptr) return;
  for (std::uint32_t i = 0; i < count; ++i) words[i] = value + launch->grid[0];
}

class kernel_test : public machine_test {
 protected:
  void SetUp() override {
    machine_test::SetUp();
    const std::size_t sizes[] = {8, 4, 4};
    ASSERT_EQ(hostcuda_register_kernel("fill", fill, 3, sizes), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleLoadData(&module_, ptx), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleGetFunction(&fill_, module_, "fill"), CUDA_SUCCESS);
    at_ = reserve(2 * MiB);
    map(at_, create(2 * MiB), 2 * MiB);
  }

  CUresult launch(CUdeviceptr at, std::uint32_t count, std::uint32_t value, CUstream s) {
    void *params[] = {&at, &count, &value};
    return cuLaunchKernel(fill_, 3, 1, 1, 32, 1, 1, 0, s, params, nullptr);
  }

  std::uint32_t word(std::size_t index) {
    std::uint32_t v = 0;
    EXPECT_EQ(cuMemcpyDtoH(&v, at_ + index * 4, 4), CUDA_SUCCESS);
    return v;
  }

  CUmodule module_ = nullptr;
  CUfunction fill_ = nullptr;
  CUdeviceptr at_ = 0;
};

TEST_F(kernel_test, RunsWithTheParametersOfTheLaunch) {
  const CUstream s = make_stream();
  ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
  ASSERT_EQ(launch(at_, 64, 40, s), CUDA_SUCCESS);  // its parameters are out of scope when it runs
  ASSERT_EQ(hostcuda_release(s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(word(0), 43U);
  EXPECT_EQ(word(63), 43U);
}

TEST_F(kernel_test, TakesAParameterBuffer) {
  struct {
    CUdeviceptr at;
    std::uint32_t count;
    std::uint32_t value;
  } buffer{at_, 8, 100};
  std::size_t size = sizeof buffer;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  ASSERT_EQ(cuLaunchKernel(fill_, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra), CUDA_SUCCESS);
  EXPECT_EQ(word(7), 101U);
  size = 4;
  EXPECT_EQ(cuLaunchKernel(fill_, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(kernel_test, LaunchesThroughAConfig) {
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  std::uint32_t count = 4;
  std::uint32_t value = 5;
  void *params[] = {&at_, &count, &value};
  ASSERT_EQ(cuLaunchKernelEx(&config, fill_, params, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(word(3), 6U);
}

TEST_F(kernel_test, OnlyRegisteredKernelsAreFound) {
  CUfunction f = nullptr;
  EXPECT_EQ(cuModuleGetFunction(&f, module_, "nobody_registered_this"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuModuleGetFunction(&f, module_, "commented_out"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuModuleGetFunction(&f, module_, "also_commented_out"), CUDA_ERROR_NOT_FOUND);
}

TEST_F(kernel_test, RefusesImagesThatAreNotPtx) {
  CUmodule m = nullptr;
  const unsigned char elf[] = {0x7F, 'E', 'L', 'F', 2, 1, 1, 0};
  const unsigned char fat[] = {0x50, 0xED, 0x55, 0xBA, 1, 0, 0x10, 0};
  EXPECT_EQ(cuModuleLoadData(&m, elf), CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(cuModuleLoadData(&m, fat), CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(cuModuleLoadData(&m, "hello"), CUDA_ERROR_INVALID_PTX);
  EXPECT_EQ(cuModuleLoadData(&m, ""), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(cuModuleLoadData(&m, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuModuleLoad(&m, "/nonexistent/file.ptx"), CUDA_ERROR_FILE_NOT_FOUND);
}

TEST_F(kernel_test, RefusesBadLaunches) {
  void *none[] = {nullptr, nullptr, nullptr};
  EXPECT_EQ(cuLaunchKernel(fill_, 0, 1, 1, 1, 1, 1, 0, nullptr, none, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchKernel(fill_, 1, 1, 1, 1024, 2, 1, 0, nullptr, none, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchKernel(fill_, 1, 1, 1, 1, 1, 1, 0, nullptr, none, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, none, nullptr),
            CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(cuModuleUnload(module_), CUDA_SUCCESS);
  EXPECT_EQ(launch(at_, 1, 1, nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuModuleUnload(module_), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(kernel_test, TouchingUnmappedMemoryBreaksTheContext) {
  ASSERT_EQ(launch(at_ + 4 * MiB, 1, 1, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(launch(at_, 1, 1, nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
  ASSERT_EQ(violations(), 1U);
  EXPECT_EQ(violation(0).kind, HOSTCUDA_ACCESS_FAULT);
  EXPECT_EQ(violation(0).at, at_ + 4 * MiB);
}

TEST_F(kernel_test, DeclaredRangesAreKnownWhileTheKernelIsQueued) {
  const CUstream s = make_stream();
  ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
  ASSERT_EQ(hostcuda_declare(s, at_, 256, 1), CUDA_SUCCESS);
  ASSERT_EQ(launch(at_, 64, 1, s), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
  ASSERT_EQ(violations(), 1U);
  EXPECT_EQ(violation(0).kind, HOSTCUDA_USE_AFTER_UNMAP);
}

TEST_F(kernel_test, UndeclaredRangesAreKnownOnceTheKernelHasRun) {
  const CUstream s = make_stream();
  std::atomic<bool> over{false};
  ASSERT_EQ(launch(at_, 64, 1, s), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchHostFunc(
                s, [](void *p) { static_cast<std::atomic<bool> *>(p)->store(true); }, &over),
            CUDA_SUCCESS);
  while (!over.load()) std::this_thread::yield();
  EXPECT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 1U);
}

TEST_F(kernel_test, AccessIsForKernelsOnly) {
  EXPECT_EQ(hostcuda_access(at_, 4, 0), nullptr);
}

TEST_F(kernel_test, AtMost64RangesAreDeclared) {
  const CUstream s = make_stream();
  for (int i = 0; i < 64; ++i) ASSERT_EQ(hostcuda_declare(s, at_, 4, 0), CUDA_SUCCESS);
  EXPECT_EQ(hostcuda_declare(s, at_, 4, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(hostcuda_declare(s, at_, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(kernel_test, SaysWhatItIs) {
  int threads = 0;
  CUmodule owner = nullptr;
  const char *name = nullptr;
  ASSERT_EQ(cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, fill_),
            CUDA_SUCCESS);
  ASSERT_EQ(cuFuncGetModule(&owner, fill_), CUDA_SUCCESS);
  ASSERT_EQ(cuFuncGetName(&name, fill_), CUDA_SUCCESS);
  EXPECT_EQ(threads, 1024);
  EXPECT_EQ(owner, module_);
  EXPECT_STREQ(name, "fill");
}

TEST_F(kernel_test, ANameNeedsAFunction) {
  const char *name = nullptr;
  EXPECT_EQ(cuFuncGetName(&name, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuFuncGetName(nullptr, fill_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuFuncGetName(nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
}

// The buffers and sizes of cuModuleLoadDataEx, as PyCUDA and Numba pass them.
TEST_F(kernel_test, LogBuffersAreFilledAndTheirSizesWrittenBack) {
  char info[64];
  char error[24];
  std::memset(info, 'x', sizeof info);
  std::memset(error, 'x', sizeof error);
  CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void *values[4];
  const auto fill_values = [&] {
    values[0] = info;
    values[1] = reinterpret_cast<void *>(sizeof info);
    values[2] = error;
    values[3] = reinterpret_cast<void *>(sizeof error);
  };
  CUmodule m = nullptr;
  fill_values();
  ASSERT_EQ(cuModuleLoadDataEx(&m, ptx, 4, options, values), CUDA_SUCCESS);
  EXPECT_EQ(values[1], nullptr);
  EXPECT_EQ(values[3], nullptr);
  EXPECT_EQ(info[0], '\0');
  EXPECT_EQ(error[0], '\0');
  fill_values();
  const unsigned char elf[] = {0x7F, 'E', 'L', 'F', 2, 1, 1, 0};
  ASSERT_EQ(cuModuleLoadDataEx(&m, elf, 4, options, values), CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(error[23], '\0');  // cut at the size, and terminated
  EXPECT_EQ(std::string(error, 23), "hostcuda does not run m");
  EXPECT_EQ(values[3], reinterpret_cast<void *>(23));
  EXPECT_EQ(values[1], nullptr);
}

}  // namespace
}  // namespace hostcuda_tests
