// Asynchronous copies that CUDA finishes before it returns: to pageable memory, and between host
// memory.
#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

class pageable_copy_test : public machine_test {
 protected:
  void SetUp() override { use("threads"); }

  void use(const std::string &schedule) {
    start("profile=h200,schedule=" + schedule);
    ASSERT_EQ(cuMemAlloc(&at_, kBytes), CUDA_SUCCESS);
    stream_ = make_stream();
    ASSERT_EQ(cuMemsetD8Async(at_, 7, kBytes, stream_), CUDA_SUCCESS);
  }

  void expect_clean_free(const std::string &which) {
    EXPECT_EQ(host_[0], 7) << which;
    EXPECT_EQ(host_[kBytes - 1], 7) << which;
    EXPECT_EQ(cuMemFree(at_), CUDA_SUCCESS) << which;
    EXPECT_EQ(violations(), 0U) << which;
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS) << which;
  }

  static constexpr std::size_t kBytes = MiB;
  static constexpr const char *kSchedules[] = {"threads", "jitter:1", "seeded:1", "seeded:2"};
  CUdeviceptr at_ = 0;
  CUstream stream_ = nullptr;
  std::vector<char> host_ = std::vector<char>(kBytes);
};

// Numba's device arrays do this in their tests.
TEST_F(pageable_copy_test, AFreeAfterACopyToPageableMemoryIsClean) {
  for (const char *schedule : kSchedules) {
    use(schedule);
    host_.assign(kBytes, 0);
    ASSERT_EQ(cuMemcpyDtoHAsync(host_.data(), at_, kBytes, stream_), CUDA_SUCCESS);
    expect_clean_free(schedule);
  }
}

TEST_F(pageable_copy_test, AUnifiedCopyIsFinishedWhenItReturns) {
  const auto to = reinterpret_cast<CUdeviceptr>(host_.data());
  ASSERT_EQ(cuMemcpyAsync(to, at_, kBytes, stream_), CUDA_SUCCESS);
  expect_clean_free("cuMemcpyAsync");
}

TEST_F(pageable_copy_test, CopiesInTwoAndThreeDimensionsAreFinishedWhenTheyReturn) {
  CUDA_MEMCPY2D flat{};
  flat.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  flat.srcDevice = at_;
  flat.dstMemoryType = CU_MEMORYTYPE_HOST;
  flat.dstHost = host_.data();
  flat.WidthInBytes = kBytes / 16;
  flat.Height = 16;
  ASSERT_EQ(cuMemcpy2DAsync(&flat, stream_), CUDA_SUCCESS);
  expect_clean_free("cuMemcpy2DAsync");

  use("threads");
  host_.assign(kBytes, 0);
  CUDA_MEMCPY3D box{};
  box.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = at_;
  box.dstMemoryType = CU_MEMORYTYPE_HOST;
  box.dstHost = host_.data();
  box.WidthInBytes = kBytes / 16;
  box.Height = 4;
  box.Depth = 4;
  ASSERT_EQ(cuMemcpy3DAsync(&box, stream_), CUDA_SUCCESS);
  expect_clean_free("cuMemcpy3DAsync");
}

TEST_F(pageable_copy_test, ACopyToPinnedOrManagedMemoryStaysAsynchronous) {
  void *pinned = nullptr;
  CUdeviceptr managed = 0;
  ASSERT_EQ(cuMemAllocHost(&pinned, kBytes), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocManaged(&managed, kBytes, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(cuMemHostRegister(host_.data(), kBytes, 0), CUDA_SUCCESS);
  ASSERT_EQ(hostcuda_hold(stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoHAsync(pinned, at_, kBytes, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoHAsync(host_.data(), at_, kBytes, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyAsync(managed, at_, kBytes, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(stream_), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(hostcuda_release(stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(at_), CUDA_SUCCESS);
  EXPECT_GT(violations(), 0U);
}

TEST_F(pageable_copy_test, ACopyBetweenHostMemoryIsFinishedWhenItReturns) {
  use("seeded:3");
  void *pinned = nullptr;
  ASSERT_EQ(cuMemAllocHost(&pinned, 2 * kBytes), CUDA_SUCCESS);
  auto *const from = static_cast<char *>(pinned), *const to = from + kBytes;
  from[kBytes - 1] = 9;
  ASSERT_EQ(cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from),
                          kBytes, stream_),
            CUDA_SUCCESS);
  EXPECT_EQ(to[kBytes - 1], 9);
}

TEST_F(pageable_copy_test, InACaptureItIsANode) {
  ASSERT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync(host_.data(), at_, kBytes, stream_), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
  EXPECT_EQ(host_[0], 0);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(hostcuda_hold(stream_), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(exec, stream_), CUDA_SUCCESS);  // does not wait
  EXPECT_EQ(host_[0], 0);
  ASSERT_EQ(hostcuda_release(stream_), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(host_[0], 7);
}

TEST_F(pageable_copy_test, ReturnsTheErrorThatBreaksItsContext) {
  const CUdeviceptr one = reserve(kPage), two = reserve(kPage);
  const CUmemGenericAllocationHandle h = create(kPage);
  map(one, h, kPage);
  map(two, h, kPage);
  ASSERT_EQ(cuMemsetD8Async(one, 1, 4096, stream_), CUDA_SUCCESS);
  // Unordered with the memset of the same bytes.
  EXPECT_EQ(cuMemcpyDtoHAsync(host_.data(), two, 4096, make_stream()), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(violations(), 1U);
}

// The wait of a copy says nothing about what other threads queue on its stream meanwhile.
TEST_F(pageable_copy_test, ProvesNothingAboutWorkQueuedDuringItsWait) {
  for (const bool async : {true, false}) {
    use("threads");
    const CUdeviceptr other = reserve(kPage);
    map(other, create(kPage), kPage);
    const CUstream s = async ? stream_ : CU_STREAM_LEGACY;
    ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
    std::thread copier([&] {
      ASSERT_EQ(cuCtxSetCurrent(ctx_), CUDA_SUCCESS);
      if (async) {
        EXPECT_EQ(cuMemcpyDtoHAsync(host_.data(), at_, kBytes, s), CUDA_SUCCESS);
      } else {
        EXPECT_EQ(cuMemcpyDtoH(host_.data(), at_, kBytes), CUDA_SUCCESS);
      }
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the copy waits now
    const CUstream b = make_stream();
    const CUevent e = make_event();
    ASSERT_EQ(cuMemsetD8Async(other, 1, 4096, b), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(e, b), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(s, e, 0), CUDA_SUCCESS);
    ASSERT_EQ(hostcuda_release(s), CUDA_SUCCESS);
    copier.join();
    EXPECT_EQ(cuMemUnmap(other, kPage), CUDA_SUCCESS);
    EXPECT_EQ(violations(), 1U) << (async ? "asynchronous" : "synchronous");
  }
}

}  // namespace
}  // namespace hostcuda_tests
