// Fixture for tests of the runtime: a new machine, and code that an nvcc would have generated.
#pragma once

// First, as nvcc does: it declares the types that <cuda.h> names too.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <hostcuda/hostcuda.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

extern "C" {
void **__cudaRegisterFatBinary(void *code);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                            int threads, uint3 *, uint3 *, dim3 *, dim3 *, int *);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext,
                       size_t bytes, int constant, int global);
void __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name, int ext,
                              size_t bytes, int constant, int global);
char __cudaInitModule(void **handle);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t cudaMemcpy_ptds(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemsetAsync_ptsz(void *at, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamSynchronize_ptsz(cudaStream_t stream);
// In <cuda_profiler_api.h>, which is not among the headers.
cudaError_t cudaProfilerStart();
cudaError_t cudaProfilerStop();
}

// What the headers call deprecated is exported still.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace cudart_tests {

class runtime_test : public ::testing::Test {
 protected:
  void SetUp() override { start("profile=h200"); }
  void TearDown() override { start("profile=h200"); }

  static void start(const char *machine) {
    ASSERT_EQ(hostcuda_reset(machine), CUDA_SUCCESS);
    cudaGetLastError();
  }

  static void *allocate(std::size_t bytes) {
    void *at = nullptr;
    EXPECT_EQ(cudaMalloc(&at, bytes), cudaSuccess);
    return at;
  }

  static std::uint64_t calls(const char *name) {
    std::uint64_t n = 0;
    EXPECT_EQ(hostcuda_calls(name, &n), CUDA_SUCCESS);
    return n;
  }
};

inline std::vector<unsigned char> pattern(std::size_t bytes) {
  std::vector<unsigned char> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(i * 7 + 3);
  return out;
}

}  // namespace cudart_tests
