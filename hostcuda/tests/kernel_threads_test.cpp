// Host kernels that are written for one thread: hostcuda_run_threads.
#include <cstring>
#include <stdexcept>
#include <vector>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

constexpr const char *threads_ptx = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 k_param_0) { ret; }
)";

// What the bodies write, each thread in its own place.
struct record {
  unsigned thread_idx[3];
  unsigned block_idx[3];
  unsigned sum;
  unsigned threads;  // of the block, after the last barrier
};

unsigned shared_sum;  // as static shared memory
unsigned shared_ended;
CUresult nested;
int printed;

record *own_record(void **params) {
  CUdeviceptr at = 0;
  std::memcpy(&at, params[0], sizeof at);
  const hostcuda_thread &t = *hostcuda_this_thread();
  const unsigned block =
      (t.block_idx[2] * t.grid_dim[1] + t.block_idx[1]) * t.grid_dim[0] + t.block_idx[0];
  const unsigned thread =
      (t.thread_idx[2] * t.block_dim[1] + t.thread_idx[1]) * t.block_dim[0] + t.thread_idx[0];
  const unsigned threads = t.block_dim[0] * t.block_dim[1] * t.block_dim[2];
  return static_cast<record *>(
      hostcuda_access(at + (block * threads + thread) * sizeof(record), sizeof(record), 1));
}

void note_position(void **params) {
  record *const r = own_record(params);
  const hostcuda_thread &t = *hostcuda_this_thread();
  std::memcpy(r->thread_idx, t.thread_idx, sizeof r->thread_idx);
  std::memcpy(r->block_idx, t.block_idx, sizeof r->block_idx);
  ++r->threads;
}

// Sums over the block, as a reduction in shared memory does: each thread sees what all have added.
void sum_of_block(void **params) {
  record *const r = own_record(params);
  const unsigned x = hostcuda_this_thread()->thread_idx[0];
  if (x == 0) shared_sum = 0;
  hostcuda_syncthreads(0, nullptr, nullptr);
  unsigned local[1000] = {};  // survives the barriers
  local[x] = x + 1;
  shared_sum += local[x];
  hostcuda_syncthreads(0, nullptr, nullptr);
  r->sum = shared_sum;
  r->threads = local[x];
}

// The odd threads end before the barrier, which neither waits for them nor counts them.
void some_end_early(void **params) {
  record *const r = own_record(params);
  const unsigned x = hostcuda_this_thread()->thread_idx[0];
  if (x % 2 == 1) {
    ++shared_ended;
    return;
  }
  unsigned threads = 0;
  unsigned nonzero = 0;
  hostcuda_syncthreads(x < 10 ? 7 : 0, &nonzero, &threads);
  r->sum = shared_ended;
  r->threads = threads * 100 + nonzero;
  hostcuda_syncthreads(0, &nonzero, nullptr);  // counts anew
  r->threads = r->threads * 10 + nonzero;
}

void third_throws(void **) {
  if (hostcuda_this_thread()->thread_idx[0] == 2) throw std::runtime_error("trap");
  hostcuda_syncthreads(0, nullptr, nullptr);
}

void prints(void **) {
  struct {
    int first = -5;
    long long second = 1LL << 40;
    double third = 0.5;
    const char *fourth = "text";
    unsigned char fifth[4] = {'c', 0, 0, 0};
    unsigned long sixth = 255;
  } const arguments;
  printed = hostcuda_printf("%d|%+lld|%6.2f|%-6s|%c|%#lx|%%|%*d|%", &arguments);
}

void runs_threads(void **params) {
  const hostcuda_launch inner{{1, 1, 1}, {1, 1, 1}, params};
  nested = hostcuda_run_threads(&inner, note_position);
}

template <void (*Body)(void **)>
void thread_kernel(const hostcuda_launch *launch) {
  hostcuda_run_threads(launch, Body);
}

class kernel_threads_test : public machine_test {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "ThreadSanitizer does not know the contexts of ucontext.h";
#endif
    machine_test::SetUp();
    at_ = reserve(2 * MiB);
    map(at_, create(2 * MiB), 2 * MiB);
    shared_ended = 0;
  }

  CUresult run(hostcuda_kernel fn, unsigned gx, unsigned gy, unsigned bx, unsigned by,
               unsigned bz) {
    const std::size_t sizes[] = {8};
    EXPECT_EQ(hostcuda_register_kernel("k", fn, 1, sizes), CUDA_SUCCESS);
    CUmodule m = nullptr;
    EXPECT_EQ(cuModuleLoadData(&m, threads_ptx), CUDA_SUCCESS);
    CUfunction f = nullptr;
    EXPECT_EQ(cuModuleGetFunction(&f, m, "k"), CUDA_SUCCESS);
    void *params[] = {&at_};
    EXPECT_EQ(cuMemsetD8(at_, 0, 2 * MiB), CUDA_SUCCESS);
    EXPECT_EQ(cuLaunchKernel(f, gx, gy, 1, bx, by, bz, 0, nullptr, params, nullptr), CUDA_SUCCESS);
    return cuStreamSynchronize(nullptr);
  }

  std::vector<record> records(std::size_t count) {
    std::vector<record> out(count);
    EXPECT_EQ(cuMemcpyDtoH(out.data(), at_, count * sizeof(record)), CUDA_SUCCESS);
    return out;
  }

  CUdeviceptr at_ = 0;
};

TEST_F(kernel_threads_test, EachThreadOfTheGridRunsOnceAndKnowsItsPlace) {
  ASSERT_EQ(run(thread_kernel<note_position>, 3, 2, 4, 3, 2), CUDA_SUCCESS);
  const auto all = records(6 * 24);
  for (unsigned i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].threads, 1U) << i;
    EXPECT_EQ(all[i].thread_idx[0], i % 4) << i;
    EXPECT_EQ(all[i].thread_idx[1], i / 4 % 3) << i;
    EXPECT_EQ(all[i].thread_idx[2], i / 12 % 2) << i;
    EXPECT_EQ(all[i].block_idx[0], i / 24 % 3) << i;
    EXPECT_EQ(all[i].block_idx[1], i / 72) << i;
  }
}

TEST_F(kernel_threads_test, ABarrierWaitsForTheWholeBlock) {
  ASSERT_EQ(run(thread_kernel<sum_of_block>, 4, 1, 1000, 1, 1), CUDA_SUCCESS);
  const auto all = records(4000);
  for (unsigned i = 0; i < all.size(); ++i) {
    ASSERT_EQ(all[i].sum, 500'500U) << i;
    ASSERT_EQ(all[i].threads, i % 1000 + 1) << i;
  }
}

TEST_F(kernel_threads_test, ABarrierDoesNotWaitForThreadsThatHaveEnded) {
  ASSERT_EQ(run(thread_kernel<some_end_early>, 1, 1, 64, 1, 1), CUDA_SUCCESS);
  const auto all = records(64);
  for (unsigned i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].sum, i % 2 == 0 ? 32U : 0U) << i;
    EXPECT_EQ(all[i].threads, i % 2 == 0 ? 32'050U : 0U) << i;
  }
}

TEST_F(kernel_threads_test, AThreadPrints) {
  testing::internal::CaptureStdout();
  ASSERT_EQ(run(thread_kernel<prints>, 1, 1, 1, 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            "-5|+1099511627776|  0.50|text  |c|0xff|%|%*d|%");
  EXPECT_EQ(printed, 6);
}

TEST_F(kernel_threads_test, AnExceptionOfAThreadFailsTheLaunch) {
  EXPECT_EQ(run(thread_kernel<third_throws>, 2, 1, 8, 1, 1), CUDA_ERROR_LAUNCH_FAILED);
}

TEST_F(kernel_threads_test, OnlyAHostKernelRunsThreads) {
  const hostcuda_launch launch{{1, 1, 1}, {1, 1, 1}, nullptr};
  EXPECT_EQ(hostcuda_run_threads(&launch, note_position), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(hostcuda_run_threads(nullptr, note_position), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(hostcuda_run_threads(&launch, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(hostcuda_syncthreads(0, nullptr, nullptr), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(hostcuda_this_thread(), nullptr);
  ASSERT_EQ(run(thread_kernel<runs_threads>, 1, 1, 1, 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(nested, CUDA_ERROR_NOT_PERMITTED);
}

}  // namespace
}  // namespace hostcuda_tests
