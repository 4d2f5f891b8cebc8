// Driver calls at process exit, when destructors of static objects release memory.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

CUcontext had = nullptr;
CUdeviceptr exit_block = 0;

// Runs after the thread-local objects of the main thread are destroyed.
void free_memory() {
  // Overwrites freed memory, so that reading it is detected.
  static void *junk[16][16];
  for (std::size_t i = 0; i < 16; ++i) {
    for (void *&piece : junk[i]) {
      piece = std::malloc(8 * (i + 1));
      if (piece != nullptr) std::memset(piece, 0xAA, 8 * (i + 1));
    }
  }
  CUcontext now = nullptr;
  const bool kept = cuCtxGetCurrent(&now) == CUDA_SUCCESS && now == had;
  const bool works = cuCtxPushCurrent(had) == CUDA_SUCCESS && cuCtxSynchronize() == CUDA_SUCCESS &&
                     cuMemsetD8Async(exit_block, 1, MiB, CU_STREAM_PER_THREAD) == CUDA_SUCCESS &&
                     cuStreamSynchronize(CU_STREAM_PER_THREAD) == CUDA_SUCCESS &&
                     cuMemFree(exit_block) == CUDA_SUCCESS && cuCtxPopCurrent(&now) == CUDA_SUCCESS;
  std::fprintf(stderr, "context %s, calls %s\n", kept ? "kept" : "lost",
               works ? "worked" : "failed");
  std::fflush(stderr);
  for (auto &row : junk) {
    for (void *piece : row) std::free(piece);
  }
}

using exit_test = machine_test;

TEST_F(exit_test, StaticObjectsCanStillCallTheDriver) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto live_and_end = [this] {
    had = ctx_;
    if (cuMemAlloc(&exit_block, MiB) != CUDA_SUCCESS ||
        cuMemsetD8Async(exit_block, 0, MiB, CU_STREAM_PER_THREAD) != CUDA_SUCCESS) {
      std::_Exit(3);
    }
    std::atexit(free_memory);
    std::exit(0);
  };
  EXPECT_EXIT(live_and_end(), ::testing::ExitedWithCode(0), "context kept, calls worked");
}

}  // namespace
}  // namespace hostcuda_tests
