// Devices, contexts, versions, errors.
#include <thread>

#include "runtime_fixture.h"

namespace cudart_tests {
namespace {

class runtime_device : public runtime_test {};

TEST_F(runtime_device, versions_are_those_of_the_headers_and_the_driver) {
  int runtime = 0;
  int driver = 0;
  ASSERT_EQ(cudaRuntimeGetVersion(&runtime), cudaSuccess);
  ASSERT_EQ(cudaDriverGetVersion(&driver), cudaSuccess);
  EXPECT_EQ(runtime, CUDART_VERSION);
  EXPECT_EQ(driver, 13000);
  EXPECT_EQ(cudaRuntimeGetVersion(nullptr), cudaErrorInvalidValue);
}

TEST_F(runtime_device, counting_creates_no_context_and_freeing_nothing_does) {
  int count = 0;
  int device = -1;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(device, 0);
  unsigned flags = 0;
  int active = 1;
  ASSERT_EQ(cuDevicePrimaryCtxGetState(0, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 0);
  ASSERT_EQ(cudaFree(nullptr), cudaSuccess);
  ASSERT_EQ(cuDevicePrimaryCtxGetState(0, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 1);
}

TEST_F(runtime_device, each_thread_has_its_device) {
  start("profile=multi:3,memory=1G");
  ASSERT_EQ(cudaSetDevice(2), cudaSuccess);
  int elsewhere = -1;
  std::thread([&] { EXPECT_EQ(cudaGetDevice(&elsewhere), cudaSuccess); }).join();
  int here = -1;
  ASSERT_EQ(cudaGetDevice(&here), cudaSuccess);
  EXPECT_EQ(here, 2);
  EXPECT_EQ(elsewhere, 0);
  EXPECT_EQ(cudaSetDevice(3), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaSetDevice(-1), cudaErrorInvalidDevice);
  ASSERT_EQ(cudaGetDevice(&here), cudaSuccess);
  EXPECT_EQ(here, 2);
  void *const at = allocate(4096);
  cudaPointerAttributes a{};
  ASSERT_EQ(cudaPointerGetAttributes(&a, at), cudaSuccess);
  EXPECT_EQ(a.device, 2);
}

TEST_F(runtime_device, a_context_of_the_program_is_used) {
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUcontext own = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&own, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(own), CUDA_SUCCESS);
  allocate(4096);
  CUcontext now = nullptr;
  ASSERT_EQ(cuCtxGetCurrent(&now), CUDA_SUCCESS);
  EXPECT_EQ(now, own);
}

TEST_F(runtime_device, properties_are_the_attributes) {
  cudaDeviceProp p{};
  ASSERT_EQ(cudaGetDeviceProperties(&p, 0), cudaSuccess);
  EXPECT_EQ(p.major, 9);
  EXPECT_EQ(p.warpSize, 32);
  EXPECT_EQ(p.maxThreadsPerBlock, 1024);
  EXPECT_GT(p.multiProcessorCount, 0);
  std::size_t unused = 0;
  std::size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&unused, &total), cudaSuccess);
  EXPECT_EQ(p.totalGlobalMem, total);
  EXPECT_NE(std::string(p.name), "");
  EXPECT_EQ(p.unifiedAddressing, 1);
  EXPECT_EQ(p.memoryPoolsSupported, 1);
  int block = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&block, cudaDevAttrMaxBlockDimZ, 0), cudaSuccess);
  EXPECT_EQ(p.maxThreadsDim[2], block);
  EXPECT_EQ(cudaGetDeviceProperties(&p, 7), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetDeviceProperties(nullptr, 0), cudaErrorInvalidValue);
}

TEST_F(runtime_device, a_bus_id_names_its_device) {
  start("profile=multi:2,memory=1G");
  char id[32] = {};
  ASSERT_EQ(cudaDeviceGetPCIBusId(id, sizeof id, 1), cudaSuccess);
  int device = -1;
  ASSERT_EQ(cudaDeviceGetByPCIBusId(&device, id), cudaSuccess);
  EXPECT_EQ(device, 1);
}

TEST_F(runtime_device, peers_are_enabled_once) {
  start("profile=multi:2,memory=1G");
  int can = 0;
  ASSERT_EQ(cudaDeviceCanAccessPeer(&can, 0, 1), cudaSuccess);
  EXPECT_EQ(can, 1);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaSuccess);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
  EXPECT_EQ(cudaDeviceDisablePeerAccess(1), cudaSuccess);
  EXPECT_EQ(cudaDeviceDisablePeerAccess(1), cudaErrorPeerAccessNotEnabled);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaErrorInvalidDevice);
}

TEST_F(runtime_device, limits_and_priorities) {
  std::size_t stack = 0;
  ASSERT_EQ(cudaDeviceSetLimit(cudaLimitStackSize, 4096), cudaSuccess);
  ASSERT_EQ(cudaDeviceGetLimit(&stack, cudaLimitStackSize), cudaSuccess);
  EXPECT_EQ(stack, 4096U);
  int least = -1;
  int greatest = 1;
  ASSERT_EQ(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
  EXPECT_EQ(least, 0);
  EXPECT_LE(greatest, 0);
}

TEST_F(runtime_device, a_reset_frees_memory_and_the_next_call_starts_again) {
  void *const at = allocate(1 << 20);
  ASSERT_EQ(cudaDeviceReset(), cudaSuccess);
  EXPECT_EQ(cudaFree(at), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  void *const next = allocate(1 << 20);
  EXPECT_EQ(cudaMemset(next, 1, 16), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST_F(runtime_device, a_reset_by_another_thread_is_noticed) {
  allocate(4096);
  std::thread([] { EXPECT_EQ(cudaDeviceReset(), cudaSuccess); }).join();
  EXPECT_NE(allocate(4096), nullptr);
}

class runtime_errors : public runtime_test {};

TEST_F(runtime_errors, the_last_error_is_returned_once) {
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(nullptr, nullptr, 4, cudaMemcpyDefault), cudaErrorInvalidValue);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // success does not clear it
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(runtime_errors, the_last_error_belongs_to_its_thread) {
  EXPECT_EQ(cudaSetDevice(99), cudaErrorInvalidDevice);
  std::thread([] {
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    EXPECT_EQ(cudaMalloc(nullptr, 1), cudaErrorInvalidValue);
  }).join();
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
}

TEST_F(runtime_errors, a_sticky_error_stays_until_the_device_is_reset) {
  void *const at = allocate(4096);
  ASSERT_EQ(cudaFree(at), cudaSuccess);
  ASSERT_EQ(hostcuda_fail_from("cuMemsetD8Async", 1, CUDA_ERROR_ILLEGAL_ADDRESS), CUDA_SUCCESS);
  EXPECT_EQ(cudaMemsetAsync(at, 0, 16, nullptr), cudaErrorIllegalAddress);
  ASSERT_EQ(hostcuda_fail_from("cuMemsetD8Async", 0, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  std::thread([] { EXPECT_EQ(cudaPeekAtLastError(), cudaErrorIllegalAddress); }).join();
  ASSERT_EQ(cudaDeviceReset(), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(runtime_errors, names_and_texts) {
  EXPECT_STREQ(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorNoDevice), "no CUDA-capable device is detected");
  EXPECT_STREQ(cudaGetErrorName(cudaSuccess), "cudaSuccess");
  EXPECT_STREQ(cudaGetErrorString(static_cast<cudaError_t>(12345)), "unrecognized error code");
}

TEST_F(runtime_errors, what_is_not_served_says_so) {
  cudaTextureObject_t texture = 0;
  EXPECT_EQ(cudaCreateTextureObject(&texture, nullptr, nullptr, nullptr), cudaErrorNotSupported);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotSupported);
}

}  // namespace
}  // namespace cudart_tests
