#include <cstring>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

class oracle_test : public machine_test {
 protected:
  void SetUp() override { use("threads"); }

  void use(const std::string &schedule, const char *strictness = "strict") {
    start("profile=h200,schedule=" + schedule + "," + strictness);
    handle_ = create(2 * MiB);
    at_ = reserve(2 * MiB);
    map(at_, handle_, 2 * MiB);
  }

  // Queues a copy from the range that stays pending.
  void queue_held_copy(CUstream s) {
    ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
    ASSERT_EQ(cuMemcpyDtoHAsync(host_.data(), at_, host_.size(), s), CUDA_SUCCESS);
  }

  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr at_ = 0;
  std::vector<char> host_ = std::vector<char>(4096);
};

TEST_F(oracle_test, UnmapUnderPendingWorkIsStickyError700) {
  const CUstream s = make_stream();
  queue_held_copy(s);
  EXPECT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 1U);
  const auto v = violation(0);
  EXPECT_EQ(v.kind, HOSTCUDA_USE_AFTER_UNMAP);
  EXPECT_EQ(v.at, at_);
  EXPECT_EQ(v.bytes, host_.size());
  EXPECT_NE(std::strstr(v.first, "cuMemcpyDtoHAsync"), nullptr) << v.first;
  EXPECT_NE(std::strstr(v.first, "+0x"), nullptr) << v.first;  // a place, not "unknown"
  EXPECT_NE(std::strstr(v.second, "cuMemUnmap"), nullptr) << v.second;
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
  hostcuda_violation none{};
  EXPECT_EQ(hostcuda_get_violation(1, &none), CUDA_ERROR_NOT_FOUND);
}

// The copy has finished, but the program has not waited for it.
TEST_F(oracle_test, UnmapAfterFinishedWorkWithoutAWaitIsAViolation) {
  const CUstream s = make_stream();
  std::atomic<bool> over{false};
  ASSERT_EQ(cuMemcpyDtoHAsync(host_.data(), at_, host_.size(), s), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchHostFunc(
                s, [](void *p) { static_cast<std::atomic<bool> *>(p)->store(true); }, &over),
            CUDA_SUCCESS);
  while (!over.load()) std::this_thread::yield();
  EXPECT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 1U);
}

TEST_F(oracle_test, LenientRecordsAndContinues) {
  use("threads", "lenient");
  const CUstream s = make_stream();
  queue_held_copy(s);
  EXPECT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 1U);
  ASSERT_EQ(hostcuda_release(s), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
}

TEST_F(oracle_test, TakingAccessAwayIsLikeUnmapping) {
  const CUstream s = make_stream();
  queue_held_copy(s);
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  cuMemSetAccess(at_, 2 * MiB, &access, 1);
  EXPECT_EQ(violations(), 1U);
}

TEST_F(oracle_test, AHostWaitMakesUnmapSafe) {
  const CUstream s = make_stream();
  ASSERT_EQ(cuMemcpyDtoHAsync(host_.data(), at_, host_.size(), s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 0U);
}

TEST_F(oracle_test, ASuccessfulQueryMakesUnmapSafe) {
  const CUstream s = make_stream();
  const CUevent e = make_event();
  ASSERT_EQ(cuMemcpyDtoHAsync(host_.data(), at_, host_.size(), s), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
  while (cuEventQuery(e) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
  EXPECT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 0U);
}

TEST_F(oracle_test, AnEventRecordedBeforeTheWorkProvesNothing) {
  const CUstream s = make_stream();
  const CUevent e = make_event();
  ASSERT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync(host_.data(), at_, host_.size(), s), CUDA_SUCCESS);
  ASSERT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 1U);
}

TEST_F(oracle_test, WaitingForAStreamThatWaitedIsEnough) {
  const CUstream a = make_stream();
  const CUstream b = make_stream();
  const CUevent e = make_event();
  ASSERT_EQ(cuMemcpyDtoHAsync(host_.data(), at_, host_.size(), a), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, a), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(b, e, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 0U);
}

TEST_F(oracle_test, WaitingForTheLegacyStreamCoversBlockingOnes) {
  const CUstream a = make_stream(CU_STREAM_DEFAULT);
  ASSERT_EQ(cuMemcpyDtoHAsync(host_.data(), at_, host_.size(), a), CUDA_SUCCESS);
  char byte = 0;
  ASSERT_EQ(cuMemcpyDtoH(&byte, at_, 1), CUDA_SUCCESS);  // on the legacy stream; waits
  EXPECT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 0U);
}

TEST_F(oracle_test, WaitingForTheLegacyStreamDoesNotCoverNonBlockingOnes) {
  const CUstream a = make_stream(CU_STREAM_NON_BLOCKING);
  ASSERT_EQ(cuMemcpyDtoHAsync(host_.data(), at_, host_.size(), a), CUDA_SUCCESS);
  char byte = 0;
  ASSERT_EQ(cuMemcpyDtoH(&byte, at_, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 1U);
}

TEST_F(oracle_test, WorkOnADestroyedStreamStillCounts) {
  const CUstream s = make_stream();
  ASSERT_EQ(cuMemcpyDtoHAsync(host_.data(), at_, host_.size(), s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamDestroy(s), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 1U);
}

TEST_F(oracle_test, AContextWaitCoversDestroyedStreams) {
  const CUstream s = make_stream();
  ASSERT_EQ(cuMemcpyDtoHAsync(host_.data(), at_, host_.size(), s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamDestroy(s), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 0U);
}

TEST_F(oracle_test, UnmappingAnUnrelatedRangeIsClean) {
  const CUdeviceptr other = reserve(2 * MiB);
  map(other, create(2 * MiB), 2 * MiB);
  const CUstream s = make_stream();
  queue_held_copy(s);
  EXPECT_EQ(cuMemUnmap(other, 2 * MiB), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 0U);
  ASSERT_EQ(hostcuda_release(s), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
}

TEST_F(oracle_test, FreeWaitsForBlockingStreams) {
  CUdeviceptr p = 0;
  ASSERT_EQ(cuMemAlloc(&p, 4096), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(p, 1, 4096, make_stream(CU_STREAM_DEFAULT)), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(p), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 0U);
}

TEST_F(oracle_test, FreeUnderNonBlockingWorkIsAViolation) {
  CUdeviceptr p = 0;
  ASSERT_EQ(cuMemAlloc(&p, 4096), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(p, 1, 4096, make_stream(CU_STREAM_NON_BLOCKING)), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(p), CUDA_SUCCESS);
  ASSERT_EQ(violations(), 1U);
  EXPECT_EQ(violation(0).kind, HOSTCUDA_USE_AFTER_FREE);
}

// Moving pages: the same handle is mapped at a new address while old work is still queued.
TEST_F(oracle_test, ASecondMappingWithAStreamWaitIsClean) {
  const CUdeviceptr second = reserve(2 * MiB);
  const CUstream a = make_stream();
  const CUstream b = make_stream();
  const CUevent e = make_event();
  ASSERT_EQ(hostcuda_hold(a), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(at_, 1, 4096, a), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, a), CUDA_SUCCESS);
  map(second, handle_, 2 * MiB);
  ASSERT_EQ(cuStreamWaitEvent(b, e, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync(host_.data(), second, host_.size(), b), CUDA_SUCCESS);
  ASSERT_EQ(hostcuda_release(a), CUDA_SUCCESS);
  ASSERT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
  EXPECT_EQ(host_[0], 1);
  EXPECT_EQ(violations(), 0U);
}

TEST_F(oracle_test, ASecondMappingWithoutAWaitIsAnUnorderedAlias) {
  const CUdeviceptr second = reserve(2 * MiB);
  const CUstream a = make_stream();
  const CUstream b = make_stream();
  ASSERT_EQ(hostcuda_hold(a), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(at_, 1, 4096, a), CUDA_SUCCESS);
  map(second, handle_, 2 * MiB);
  ASSERT_EQ(cuMemcpyDtoHAsync(host_.data(), second, host_.size(), b), CUDA_SUCCESS);
  ASSERT_EQ(violations(), 1U);
  const auto v = violation(0);
  EXPECT_EQ(v.kind, HOSTCUDA_UNORDERED_ALIAS);
  EXPECT_EQ(v.at, second);
  EXPECT_NE(std::strstr(v.first, "cuMemsetD8Async"), nullptr) << v.first;
  EXPECT_NE(std::strstr(v.second, "cuMemcpyDtoHAsync"), nullptr) << v.second;
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(oracle_test, TwoUnorderedReadsOfTheSamePagesAreFine) {
  const CUdeviceptr second = reserve(2 * MiB);
  map(second, handle_, 2 * MiB);
  const CUstream a = make_stream();
  std::vector<char> other(4096);
  queue_held_copy(a);
  ASSERT_EQ(cuMemcpyDtoHAsync(other.data(), second, other.size(), make_stream()), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 0U);
  ASSERT_EQ(hostcuda_release(a), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_F(oracle_test, DifferentBytesOfAnAliasedPageAreFine) {
  const CUdeviceptr second = reserve(2 * MiB);
  map(second, handle_, 2 * MiB);
  ASSERT_EQ(cuMemsetD8Async(at_, 1, 4096, make_stream()), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(second + 4096, 2, 4096, make_stream()), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 0U);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_F(oracle_test, FindsTheSameInEverySchedule) {
  for (const char *schedule : {"threads", "jitter:1", "jitter:2", "seeded:1", "seeded:2"}) {
    use(schedule);
    const CUstream s = make_stream();
    const CUevent e = make_event();
    ASSERT_EQ(cuMemcpyDtoHAsync(host_.data(), at_, host_.size(), s), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
    ASSERT_EQ(cuMemcpyDtoHAsync(host_.data(), at_ + MiB, host_.size(), s), CUDA_SUCCESS);
    ASSERT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
    EXPECT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
    ASSERT_EQ(violations(), 1U) << schedule;
    EXPECT_EQ(violation(0).at, at_ + MiB) << schedule;
  }
}

TEST_F(oracle_test, ThousandsOfPendingOperationsStayCheap) {
  const CUstream s = make_stream();
  ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
  for (std::size_t i = 0; i < 20000; ++i) {
    ASSERT_EQ(cuMemsetD8Async(at_ + (i % 512) * 4096, 1, 4096, s), CUDA_SUCCESS);
  }
  ASSERT_EQ(hostcuda_release(s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 0U);
}

__attribute__((noinline)) CUresult queue_set(CUdeviceptr at, CUstream s) {
  const CUresult r = cuMemsetD8Async(at, 1, 64, s);
  return r == CUDA_SUCCESS ? r : CUDA_ERROR_UNKNOWN;  // prevents a tail call
}
__attribute__((noinline)) CUresult one_caller(CUdeviceptr at, CUstream s) {
  const CUresult r = queue_set(at, s);
  return r == CUDA_SUCCESS ? r : CUDA_ERROR_INVALID_VALUE;
}
__attribute__((noinline)) CUresult other_caller(CUdeviceptr at, CUstream s) {
  const CUresult r = queue_set(at, s);
  return r == CUDA_SUCCESS ? r : CUDA_ERROR_INVALID_IMAGE;
}

// A cached stack walk must not be used for another path to the same call.
TEST_F(oracle_test, DistinguishesCallersOfACommonFunction) {
  const CUstream s = make_stream();
  ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(one_caller(at_, s), CUDA_SUCCESS);
    ASSERT_EQ(other_caller(at_ + 4096, s), CUDA_SUCCESS);
    ASSERT_EQ(one_caller(at_ + 8192, s), CUDA_SUCCESS);
  }
  ASSERT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
  ASSERT_EQ(violations(), 3U);
  EXPECT_STRNE(violation(0).first, violation(1).first);
  EXPECT_STRNE(violation(1).first, violation(2).first);
}

// cuMemUnmap must not remove pages that a running copy accesses.
TEST_F(oracle_test, UnmapWaitsForABodyThatRuns) {
  for (int round = 0; round < 20; ++round) {
    use("threads", "lenient");
    std::vector<char> big(2 * MiB);
    const CUstream s = make_stream();
    for (int i = 0; i < 8; ++i) {
      ASSERT_EQ(cuMemcpyDtoHAsync(big.data(), at_, big.size(), s), CUDA_SUCCESS);
    }
    ASSERT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    EXPECT_EQ(violations(), 1U);
  }
}

// Memory that the driver hands from one owner to the next.
class reuse_test : public oracle_test {
 protected:
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
    ASSERT_EQ(cuMemAllocAsync(&old, kBytes, a), CUDA_SUCCESS);
    if (captured) {
      ASSERT_EQ(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    }
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
    EXPECT_EQ(at, old);
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
