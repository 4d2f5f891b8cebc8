// The oracle and memory that the driver hands from one owner to the next.
#include <cstring>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

class reuse_test : public machine_test {
 protected:
  void SetUp() override { use("threads"); }

  void use(const std::string &schedule, const char *strictness = "strict") {
    start("profile=h200,schedule=" + schedule + "," + strictness);
    handle_ = create(kBytes);
    at_ = reserve(kBytes);
    map(at_, handle_, kBytes);
  }

  static constexpr std::size_t kBytes = 2 * MiB;

  // Queues an allocation, a memset and a free, and returns when the free has run. The program
  // cannot know that it has: nothing has waited for `s`.
  static CUdeviceptr give_back(CUstream s) {
    CUdeviceptr at = 0;
    EXPECT_EQ(cuMemAllocAsync(&at, kBytes, s), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8Async(at, 1, kBytes, s), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFreeAsync(at, s), CUDA_SUCCESS);
    run_all(s);
    return at;
  }

  // Returns when all queued work of `s` has run, without a wait for `s`.
  static void run_all(CUstream s) {
    std::atomic<bool> over{false};
    ASSERT_EQ(cuLaunchHostFunc(
                  s, [](void *p) { static_cast<std::atomic<bool> *>(p)->store(true); }, &over),
              CUDA_SUCCESS);
    // In a seeded schedule, the query of another stream runs queued work.
    const CUstream other = make_stream();
    while (!over.load()) {
      ASSERT_EQ(cuStreamQuery(other), CUDA_SUCCESS);
      std::this_thread::yield();
    }
    ASSERT_EQ(cuStreamDestroy(other), CUDA_SUCCESS);
  }

  // A kernel that writes 64 bytes at its parameter, or nothing at 0. It does not declare them.
  static CUfunction kernel() {
    const std::size_t sizes[] = {sizeof(CUdeviceptr)};
    EXPECT_EQ(hostcuda_register_kernel(
                  "write_64",
                  [](const hostcuda_launch *launch) {
                    const CUdeviceptr at = *static_cast<CUdeviceptr *>(launch->params[0]);
                    if (at != 0) hostcuda_access(at, 64, 1);
                  },
                  1, sizes),
              CUDA_SUCCESS);
    CUmodule module = nullptr;
    CUfunction f = nullptr;
    EXPECT_EQ(cuModuleLoadData(&module,
                               ".version 8.0\n.visible .entry write_64(.param .u64 at) { ret; }"),
              CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&f, module, "write_64"), CUDA_SUCCESS);
    return f;
  }

  static constexpr const char *kSchedules[] = {"threads", "jitter:3", "seeded:1", "seeded:2"};

  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr at_ = 0;
};

// Regression: cuMemFree of reused memory was blamed for the queued free of the previous owner, and
// the context broken.
TEST_F(reuse_test, ANewOwnerIsNotBlamedForTheFreeOfThePreviousOne) {
  for (const char *schedule : kSchedules) {
    use(schedule);
    const CUstream a = make_stream();
    const CUstream b = make_stream();
    const CUdeviceptr old = give_back(a);
    CUdeviceptr at = 0;
    ASSERT_EQ(cuMemAllocAsync(&at, kBytes, b), CUDA_SUCCESS);
    EXPECT_EQ(at, old) << schedule;
    ASSERT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree(at), CUDA_SUCCESS);
    // cuStreamSynchronize has released the pool's chunk if it was empty, and cuMemAlloc may get its
    // addresses.
    for (int i = 0; i < 20; ++i) {
      give_back(a);
      ASSERT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
      ASSERT_EQ(cuMemAlloc(&at, kBytes), CUDA_SUCCESS);
      ASSERT_EQ(cuMemFree(at), CUDA_SUCCESS);
      void *host = nullptr;
      ASSERT_EQ(cuMemAllocManaged(&at, kBytes, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
      ASSERT_EQ(cuMemFree(at), CUDA_SUCCESS);
      ASSERT_EQ(cuMemAllocHost(&host, kBytes), CUDA_SUCCESS);
      ASSERT_EQ(cuMemFreeHost(host), CUDA_SUCCESS);
      const CUdeviceptr reserved = reserve(kBytes);
      map(reserved, handle_, kBytes);
      ASSERT_EQ(cuMemUnmap(reserved, kBytes), CUDA_SUCCESS);
      ASSERT_EQ(cuMemAddressFree(reserved, kBytes), CUDA_SUCCESS);
    }
    EXPECT_EQ(violations(), 0U) << schedule;
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS) << schedule;
  }
}

// Regression: as above, for accesses of a kernel that are known only while it runs, and for a free
// in a graph.
TEST_F(reuse_test, ANewOwnerIsNotBlamedForKernelsAndGraphsOfThePreviousOne) {
  const CUstream a = make_stream();
  const CUstream b = make_stream();
  const CUfunction write = kernel();
  for (const bool captured : {false, true}) {
    CUdeviceptr old = 0, at = 0;
    CUgraphExec exec = nullptr;
    if (captured) {
      ASSERT_EQ(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    }
    ASSERT_EQ(cuMemAllocAsync(&old, kBytes, a), CUDA_SUCCESS);
    void *params[] = {&old};
    ASSERT_EQ(cuLaunchKernel(write, 1, 1, 1, 1, 1, 1, 0, a, params, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cuMemsetD8Async(old, 1, kBytes, a), CUDA_SUCCESS);
    ASSERT_EQ(cuMemFreeAsync(old, a), CUDA_SUCCESS);
    if (captured) {
      CUgraph graph = nullptr;
      ASSERT_EQ(cuStreamEndCapture(a, &graph), CUDA_SUCCESS);
      ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
      ASSERT_EQ(cuGraphLaunch(exec, a), CUDA_SUCCESS);
    }
    run_all(a);
    ASSERT_EQ(cuMemAllocAsync(&at, kBytes, b), CUDA_SUCCESS);
    if (captured) {  // memory of a graph is used again by the next launch
      ASSERT_EQ(cuGraphLaunch(exec, b), CUDA_SUCCESS);
    } else {
      EXPECT_EQ(at, old);
    }
    ASSERT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree(at), CUDA_SUCCESS);
    EXPECT_EQ(violations(), 0U) << captured;
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  }
}

// Regression: as above, for a correct program with several threads.
TEST_F(reuse_test, ThreadsThatReuseMemoryAreNotBlamed) {
  for (const char *schedule : {"threads", "jitter:3", "seeded:5"}) {
    start(std::string("profile=h200,strict,jitter_us=20,schedule=") + schedule);
    std::atomic<int> failed{0};
    std::vector<std::thread> all;
    for (int t = 0; t < 8; ++t) {
      all.emplace_back([&] {
        const auto must = [&](CUresult r) { failed += r == CUDA_SUCCESS ? 0 : 1; };
        must(cuCtxSetCurrent(ctx_));
        const CUstream a = make_stream();
        const CUstream b = make_stream();
        for (int i = 0; i < 20 && failed == 0; ++i) {
          CUdeviceptr at = 0;
          must(cuMemAllocAsync(&at, kBytes, a));
          must(cuMemFreeAsync(at, a));
          must(cuStreamSynchronize(b));
          must(cuMemAlloc(&at, kBytes));
          must(cuMemFree(at));
        }
      });
    }
    for (auto &t : all) t.join();
    EXPECT_EQ(failed, 0) << schedule;
    EXPECT_EQ(violations(), 0U) << schedule;
  }
}

TEST_F(reuse_test, TheNewOwnersOwnRaceIsFound) {
  for (const char *schedule : kSchedules) {
    for (const bool other_stream : {false, true}) {
      use(schedule);
      const CUstream a = make_stream();
      const CUdeviceptr old = give_back(a);
      const CUstream b = other_stream ? make_stream() : a;
      CUdeviceptr at = 0;
      ASSERT_EQ(cuMemAllocAsync(&at, kBytes, b), CUDA_SUCCESS);
      EXPECT_EQ(at, old);
      ASSERT_EQ(cuMemsetD32Async(at, 1, 16, b), CUDA_SUCCESS);
      EXPECT_EQ(cuMemFree(at), CUDA_SUCCESS);
      ASSERT_EQ(violations(), 1U) << schedule;
      EXPECT_EQ(violation(0).kind, HOSTCUDA_USE_AFTER_FREE);
      EXPECT_NE(std::strstr(violation(0).first, "cuMemsetD32Async"), nullptr) << violation(0).first;
      EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    }
  }
}

// The bytes are reused before the free has run, by work that is ordered after it.
TEST_F(reuse_test, TheNewOwnersRaceIsFoundBeforeTheFreeHasRun) {
  use("seeded:1", "lenient");
  const CUstream a = make_stream();
  CUdeviceptr old = 0, at = 0;
  ASSERT_EQ(cuMemAllocAsync(&old, kBytes, a), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(old, 1, kBytes, a), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(old, a), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocAsync(&at, kBytes, a), CUDA_SUCCESS);
  EXPECT_EQ(at, old);
  ASSERT_EQ(cuMemsetD32Async(at, 1, 16, a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(at), CUDA_SUCCESS);
  ASSERT_EQ(violations(), 1U);
  EXPECT_NE(std::strstr(violation(0).first, "cuMemsetD32Async"), nullptr) << violation(0).first;
}

// A use that is not ordered before the free stays on record, in every schedule, even if it has run.
TEST_F(reuse_test, AnUnorderedUseOfTheOldAllocationIsFound) {
  for (const char *schedule : kSchedules) {
    use(schedule);
    const CUstream a = make_stream();
    const CUstream b = make_stream();
    CUdeviceptr old = 0, at = 0;
    ASSERT_EQ(cuMemAllocAsync(&old, kBytes, a), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
    ASSERT_EQ(cuMemsetD32Async(old, 1, 16, b), CUDA_SUCCESS);
    run_all(b);
    ASSERT_EQ(cuMemFreeAsync(old, a), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAllocAsync(&at, kBytes, a), CUDA_SUCCESS);
    ASSERT_EQ(at, old);
    ASSERT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree(at), CUDA_SUCCESS);
    ASSERT_EQ(violations(), 1U) << schedule;
    EXPECT_NE(std::strstr(violation(0).first, "cuMemsetD32Async"), nullptr) << violation(0).first;
  }
}

// Work of another stream that the free does not wait for, queued after it.
TEST_F(reuse_test, AUseOfTheOldAllocationAfterItsFreeIsFound) {
  const CUstream a = make_stream();
  const CUstream b = make_stream();
  CUdeviceptr old = 0, at = 0;
  ASSERT_EQ(cuMemAllocAsync(&old, kBytes, a), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
  ASSERT_EQ(hostcuda_hold(a), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(old, a), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD32Async(old, 1, 16, b), CUDA_SUCCESS);
  run_all(b);  // later, it would be an access fault
  ASSERT_EQ(hostcuda_release(a), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocAsync(&at, kBytes, a), CUDA_SUCCESS);
  ASSERT_EQ(at, old);
  ASSERT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(at), CUDA_SUCCESS);
  ASSERT_EQ(violations(), 1U);
  EXPECT_NE(std::strstr(violation(0).first, "cuMemsetD32Async"), nullptr) << violation(0).first;
}

// One declared access over two blocks: the free of one must not hide the other.
TEST_F(reuse_test, TheFreeOfABlockKeepsAccessesToItsNeighbour) {
  const CUstream a = make_stream();
  CUdeviceptr one = 0, two = 0;
  ASSERT_EQ(cuMemAllocAsync(&one, MiB, a), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocAsync(&two, MiB, a), CUDA_SUCCESS);
  ASSERT_EQ(two, one + MiB);
  ASSERT_EQ(hostcuda_declare(a, one, 2 * MiB, 1), CUDA_SUCCESS);
  CUdeviceptr nothing = 0;
  void *params[] = {&nothing};
  ASSERT_EQ(cuLaunchKernel(kernel(), 1, 1, 1, 1, 1, 1, 0, a, params, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(one, a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(two), CUDA_SUCCESS);
  ASSERT_EQ(violations(), 1U);
  EXPECT_EQ(violation(0).at, two);
  EXPECT_EQ(violation(0).bytes, MiB);
}

// Regression: addresses of pinned host memory that are reused for device memory were blamed for
// copies of the previous owner.
TEST_F(reuse_test, DeviceMemoryIsNotBlamedForPinnedMemory) {
  const CUstream s = make_stream();
  void *host = nullptr;
  ASSERT_EQ(cuMemAllocHost(&host, 2 * kBytes), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync(host, at_, kBytes, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync(static_cast<char *>(host) + kBytes, at_, kBytes, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeHost(host), CUDA_SUCCESS);  // waits for the copies
  const CUdeviceptr start = reinterpret_cast<CUdeviceptr>(host);
  const CUdeviceptr inside = (start + kBytes - 1) / kBytes * kBytes;
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAddressReserve(&at, kBytes, 0, inside, 0), CUDA_SUCCESS);
  if (at != inside) GTEST_SKIP() << "another thread has taken the addresses";
  map(at, create(kBytes), kBytes);
  EXPECT_EQ(cuMemUnmap(at, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 0U);
}

}  // namespace
}  // namespace hostcuda_tests
