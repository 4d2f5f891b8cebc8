// A program of the CUDA runtime, which looks the driver's functions up by itself.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <vector>

#include "tests/preload/clients/memory_user.h"

int main() {
  const std::size_t sizes[] = {1, 700, 64 << 10, 5 << 20};
  std::vector<void *> blocks;
  for (const std::size_t bytes : sizes) {
    void *block = nullptr;
    CLIENT_CHECK(cudaMalloc(&block, bytes));
    const std::vector<unsigned char> pattern(bytes, static_cast<unsigned char>(blocks.size() + 17));
    CLIENT_CHECK(cudaMemcpy(block, pattern.data(), bytes, cudaMemcpyHostToDevice));
    blocks.push_back(block);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    std::vector<unsigned char> got(sizes[i]);
    CLIENT_CHECK(cudaMemcpy(got.data(), blocks[i], sizes[i], cudaMemcpyDeviceToHost));
    for (const unsigned char c : got) CLIENT_EXPECT(c == i + 17);
    CLIENT_CHECK(cudaFree(blocks[i]));
  }
  // The driver's function, by the runtime.
  void *found = nullptr;
  cudaDriverEntryPointQueryResult status{};
  CLIENT_CHECK(
      cudaGetDriverEntryPointByVersion("cuMemAlloc", &found, 12000, cudaEnableDefault, &status));
  CUdeviceptr at = 0;
  CLIENT_CHECK(reinterpret_cast<CUresult (*)(CUdeviceptr *, std::size_t)>(found)(&at, 100));
  CLIENT_CHECK(cudaFree(reinterpret_cast<void *>(at)));
  std::printf("blocks %zu\n", blocks.size() + 1);
  return 0;
}
