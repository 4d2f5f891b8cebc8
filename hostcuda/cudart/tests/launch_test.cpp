// What generated code registers, and launches of it.
#include "runtime_fixture.h"

namespace cudart_tests {
namespace {

constexpr const char *fill_ptx = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .entry fill(.param .u64 at, .param .u32 count, .param .u32 value) { ret; }
.visible .entry nobody() { ret; }
)";

struct wrapper {
  int magic = 0x466243b1;
  int version = 1;
  const void *data = fill_ptx;
  void *file_name = nullptr;
};

void fill_on_host(const hostcuda_launch *launch) {
  CUdeviceptr at = 0;
  std::uint32_t count = 0;
  std::uint32_t value = 0;
  std::memcpy(&at, launch->params[0], sizeof at);
  std::memcpy(&count, launch->params[1], sizeof count);
  std::memcpy(&value, launch->params[2], sizeof value);
  auto *const words = static_cast<std::uint32_t *>(hostcuda_access(at, count * 4, 1));
  for (std::uint32_t i = 0; words != nullptr && i < count; ++i) words[i] = value + launch->grid[0];
}

// As the stubs that nvcc generates: their addresses name the kernels.
void fill_stub() {}
void nobody_stub() {}
void unknown_stub() {}
int symbol_stub[4];

template <class T>
const void *key(T *stub) {
  return reinterpret_cast<const void *>(stub);
}

class runtime_launch : public runtime_test {
 protected:
  void SetUp() override {
    runtime_test::SetUp();
    const std::size_t sizes[] = {8, 4, 4};
    ASSERT_EQ(hostcuda_register_kernel("fill", fill_on_host, 3, sizes), CUDA_SUCCESS);
    handle_ = __cudaRegisterFatBinary(&wrapper_);
    add(fill_stub, "fill");
    add(nobody_stub, "nobody");
    __cudaRegisterVar(handle_, reinterpret_cast<char *>(symbol_stub), nullptr, "table", 0,
                      sizeof symbol_stub, 0, 0);
    __cudaRegisterFatBinaryEnd(handle_);
  }
  void TearDown() override {
    __cudaUnregisterFatBinary(handle_);
    runtime_test::TearDown();
  }

  void add(void (*stub)(), const char *name) {
    __cudaRegisterFunction(handle_, reinterpret_cast<const char *>(stub), nullptr, name, -1,
                           nullptr, nullptr, nullptr, nullptr, nullptr);
  }

  cudaError_t launch_fill(const void *function, std::uint32_t value, cudaStream_t s = nullptr,
                          dim3 grid = {2, 1, 1}) {
    void *arguments[] = {&at_, &count_, &value};
    return cudaLaunchKernel(function, grid, {32, 1, 1}, arguments, 0, s);
  }

  std::uint32_t word(std::size_t i) {
    std::uint32_t out = 0;
    EXPECT_EQ(cudaMemcpy(&out, static_cast<std::uint32_t *>(at_) + i, 4, cudaMemcpyDeviceToHost),
              cudaSuccess);
    return out;
  }

  wrapper wrapper_;
  void **handle_ = nullptr;
  void *at_ = nullptr;
  std::uint32_t count_ = 256;
};

TEST_F(runtime_launch, a_registered_kernel_runs) {
  at_ = allocate(1024);
  ASSERT_EQ(launch_fill(key(fill_stub), 40), cudaSuccess);
  EXPECT_EQ(word(0), 42U);
  EXPECT_EQ(word(255), 42U);
}

TEST_F(runtime_launch, it_runs_on_the_next_machine_and_after_a_reset) {
  at_ = allocate(1024);
  ASSERT_EQ(launch_fill(key(fill_stub), 1), cudaSuccess);
  ASSERT_EQ(cudaDeviceReset(), cudaSuccess);
  at_ = allocate(1024);
  ASSERT_EQ(launch_fill(key(fill_stub), 2), cudaSuccess);
  EXPECT_EQ(word(9), 4U);
  start("profile=a100");
  at_ = allocate(1024);
  ASSERT_EQ(launch_fill(key(fill_stub), 3), cudaSuccess);
  EXPECT_EQ(word(9), 5U);
}

TEST_F(runtime_launch, unknown_functions_and_bad_sizes_are_errors) {
  at_ = allocate(1024);
  EXPECT_EQ(launch_fill(key(unknown_stub), 1), cudaErrorInvalidDeviceFunction);
  EXPECT_EQ(launch_fill(nullptr, 1), cudaErrorInvalidDeviceFunction);
  EXPECT_EQ(launch_fill(key(nobody_stub), 1), cudaErrorInvalidDeviceFunction);
  EXPECT_EQ(launch_fill(key(fill_stub), 1, nullptr, {0, 1, 1}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
}

TEST_F(runtime_launch, a_fault_breaks_the_context_until_a_reset) {
  at_ = allocate(1024);
  count_ = 1U << 24;  // more than is mapped
  ASSERT_EQ(launch_fill(key(fill_stub), 1), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  void *more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, 16), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  ASSERT_EQ(cudaDeviceReset(), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  at_ = allocate(1024);
  count_ = 256;
  ASSERT_EQ(launch_fill(key(fill_stub), 1), cudaSuccess);
  EXPECT_EQ(word(0), 3U);
}

TEST_F(runtime_launch, skipped_kernels_are_accepted) {
  start("profile=h200,kernels=skip");
  at_ = allocate(1024);
  EXPECT_EQ(launch_fill(key(nobody_stub), 1), cudaSuccess);
  EXPECT_EQ(launch_fill(key(fill_stub), 1), cudaSuccess);
  EXPECT_EQ(word(0), 3U);
  hostcuda_counters c{};
  ASSERT_EQ(hostcuda_get_counters(&c), CUDA_SUCCESS);
  EXPECT_EQ(c.skipped_launches, 1U);
}

TEST_F(runtime_launch, machine_code_needs_kernels_skip) {
  static const unsigned char fat[64] = {0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0};
  wrapper w;
  w.data = fat;
  void **const handle = __cudaRegisterFatBinary(&w);
  __cudaRegisterFunction(handle, reinterpret_cast<const char *>(unknown_stub), nullptr, "fill", -1,
                         nullptr, nullptr, nullptr, nullptr, nullptr);
  at_ = allocate(1024);
  EXPECT_EQ(launch_fill(key(unknown_stub), 1), cudaErrorNoKernelImageForDevice);
  start("profile=h200,kernels=skip");
  at_ = allocate(1024);
  EXPECT_EQ(launch_fill(key(unknown_stub), 1), cudaSuccess);
  EXPECT_EQ(word(0), 3U);  // a registered host kernel runs
  __cudaUnregisterFatBinary(handle);
  EXPECT_EQ(launch_fill(key(unknown_stub), 1), cudaErrorInvalidDeviceFunction);
}

TEST_F(runtime_launch, a_launch_is_captured) {
  at_ = allocate(1024);
  ASSERT_EQ(cudaMemset(at_, 0, 1024), cudaSuccess);
  cudaStream_t s = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(launch_fill(key(fill_stub), 10, s), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(s, &graph), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiateWithFlags(&exec, graph, 0), cudaSuccess);
  EXPECT_EQ(word(3), 0U);
  ASSERT_EQ(cudaGraphLaunch(exec, s), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(s), cudaSuccess);
  EXPECT_EQ(word(3), 12U);
}

TEST_F(runtime_launch, other_ways_to_launch) {
  at_ = allocate(1024);
  std::uint32_t value = 5;
  void *arguments[] = {&at_, &count_, &value};
  ASSERT_EQ(
      cudaLaunchCooperativeKernel(key(fill_stub), {1, 1, 1}, {32, 1, 1}, arguments, 0, nullptr),
      cudaSuccess);
  EXPECT_EQ(word(0), 6U);
  cudaLaunchConfig_t config{};
  config.gridDim = {3, 1, 1};
  config.blockDim = {32, 1, 1};
  ASSERT_EQ(cudaLaunchKernelExC(&config, key(fill_stub), arguments), cudaSuccess);
  EXPECT_EQ(word(0), 8U);
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  value = 1;
  ASSERT_EQ(cudaLaunchKernelExC(&config, key(fill_stub), arguments), cudaSuccess);
  EXPECT_EQ(word(0), 4U);
  cudaFunction_t function = nullptr;
  ASSERT_EQ(cudaGetFuncBySymbol(&function, key(fill_stub)), cudaSuccess);
  ASSERT_EQ(launch_fill(function, 70), cudaSuccess);
  EXPECT_EQ(word(0), 72U);
}

TEST_F(runtime_launch, configurations_are_a_stack) {
  ASSERT_EQ(__cudaPushCallConfiguration({1, 2, 3}, {4, 1, 1}, 5, nullptr), 0U);
  ASSERT_EQ(__cudaPushCallConfiguration({7, 1, 1}, {8, 1, 1}, 9, nullptr), 0U);
  dim3 grid;
  dim3 block;
  std::size_t shared = 0;
  cudaStream_t stream = nullptr;
  ASSERT_EQ(__cudaPopCallConfiguration(&grid, &block, &shared, &stream), cudaSuccess);
  EXPECT_EQ(grid.x, 7U);
  EXPECT_EQ(shared, 9U);
  ASSERT_EQ(__cudaPopCallConfiguration(&grid, &block, &shared, &stream), cudaSuccess);
  EXPECT_EQ(grid.z, 3U);
  EXPECT_EQ(block.x, 4U);
  EXPECT_EQ(__cudaPopCallConfiguration(&grid, &block, &shared, &stream),
            cudaErrorMissingConfiguration);
}

TEST_F(runtime_launch, attributes_and_occupancy) {
  cudaFuncAttributes a{};
  ASSERT_EQ(cudaFuncGetAttributes(&a, key(fill_stub)), cudaSuccess);
  EXPECT_EQ(a.maxThreadsPerBlock, 1024);
  EXPECT_EQ(a.numRegs, 32);
  ASSERT_EQ(
      cudaFuncSetAttribute(key(fill_stub), cudaFuncAttributeMaxDynamicSharedMemorySize, 65536),
      cudaSuccess);
  ASSERT_EQ(cudaFuncGetAttributes(&a, key(fill_stub)), cudaSuccess);
  EXPECT_EQ(a.maxDynamicSharedSizeBytes, 65536);
  int blocks = 0;
  ASSERT_EQ(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, key(fill_stub), 256, 0),
            cudaSuccess);
  EXPECT_EQ(blocks, 8);
  EXPECT_EQ(cudaFuncGetAttributes(&a, key(unknown_stub)), cudaErrorInvalidDeviceFunction);
}

TEST_F(runtime_launch, variables_have_storage_on_each_device) {
  start("profile=multi:2,memory=1G");
  const int in[4] = {1, 2, 3, 4};
  int out[4] = {};
  ASSERT_EQ(cudaMemcpyFromSymbol(out, symbol_stub, sizeof out, 0, cudaMemcpyDeviceToHost),
            cudaSuccess);
  EXPECT_EQ(out[3], 0);
  ASSERT_EQ(cudaMemcpyToSymbol(symbol_stub, in, 12, 4, cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaMemcpyFromSymbol(out, symbol_stub, sizeof out, 0, cudaMemcpyDeviceToHost),
            cudaSuccess);
  EXPECT_EQ(out[3], 3);
  void *first = nullptr;
  void *second = nullptr;
  ASSERT_EQ(cudaGetSymbolAddress(&first, symbol_stub), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(cudaGetSymbolAddress(&second, symbol_stub), cudaSuccess);
  EXPECT_NE(first, second);
  std::size_t bytes = 0;
  ASSERT_EQ(cudaGetSymbolSize(&bytes, symbol_stub), cudaSuccess);
  EXPECT_EQ(bytes, sizeof symbol_stub);
  EXPECT_EQ(cudaMemcpyToSymbol(symbol_stub, in, 16, 4, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyToSymbol(symbol_stub, in, 4, 0, cudaMemcpyDeviceToHost),
            cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaGetSymbolSize(&bytes, in), cudaErrorInvalidSymbol);
}

TEST_F(runtime_launch, a_managed_variable_gets_its_address) {
  static int *counter = nullptr;
  __cudaRegisterManagedVar(handle_, reinterpret_cast<void **>(&counter), nullptr, "counter", 0,
                           sizeof(int), 0, 0);
  ASSERT_NE(__cudaInitModule(handle_), 0);
  ASSERT_NE(counter, nullptr);
  EXPECT_EQ(*counter, 0);
  *counter = 5;
}

}  // namespace
}  // namespace cudart_tests
