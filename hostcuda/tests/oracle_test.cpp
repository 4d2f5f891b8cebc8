#include <cstring>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

// Pinned host memory: a copy to pageable memory is finished when it returns.
struct pinned_bytes {
  void allocate(std::size_t bytes) {
    void *at = nullptr;
    ASSERT_EQ(cuMemAllocHost(&at, bytes), CUDA_SUCCESS);
    at_ = static_cast<char *>(at);
    size_ = bytes;
  }
  char *data() const { return at_; }
  std::size_t size() const { return size_; }
  char operator[](std::size_t i) const { return at_[i]; }

 private:
  char *at_ = nullptr;
  std::size_t size_ = 0;
};

class oracle_test : public machine_test {
 protected:
  void SetUp() override { use("threads"); }

  void use(const std::string &schedule, const char *strictness = "strict") {
    start("profile=h200,schedule=" + schedule + "," + strictness);
    handle_ = create(2 * MiB);
    at_ = reserve(2 * MiB);
    map(at_, handle_, 2 * MiB);
    host_.allocate(4096);
  }

  // Queues a copy from the range that stays pending.
  void queue_held_copy(CUstream s) {
    ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
    ASSERT_EQ(cuMemcpyDtoHAsync(host_.data(), at_, host_.size(), s), CUDA_SUCCESS);
  }

  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr at_ = 0;
  pinned_bytes host_;
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
  pinned_bytes other;
  other.allocate(4096);
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
    pinned_bytes big;
    big.allocate(2 * MiB);
    const CUstream s = make_stream();
    for (int i = 0; i < 8; ++i) {
      ASSERT_EQ(cuMemcpyDtoHAsync(big.data(), at_, big.size(), s), CUDA_SUCCESS);
    }
    ASSERT_EQ(cuMemUnmap(at_, 2 * MiB), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    EXPECT_EQ(violations(), 1U);
  }
}

}  // namespace
}  // namespace hostcuda_tests
