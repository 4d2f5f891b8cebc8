// Stream-ordered allocation and memory pools.
#include <algorithm>
#include <memory>
#include <vector>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

class pool : public machine_test {
 protected:
  static cuuint64_t attribute(CUmemoryPool p, CUmemPool_attribute which) {
    cuuint64_t v = 0;
    EXPECT_EQ(cuMemPoolGetAttribute(p, which, &v), CUDA_SUCCESS);
    return v;
  }

  static CUmemoryPool make_pool() {
    CUmemPoolProps props{};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemoryPool p = nullptr;
    EXPECT_EQ(cuMemPoolCreate(&p, &props), CUDA_SUCCESS);
    return p;
  }
};

TEST_F(pool, AllocatesAndFreesInStreamOrder) {
  const CUstream s = make_stream();
  CUmemoryPool p = nullptr;
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&p, 0), CUDA_SUCCESS);
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAllocAsync(&at, 3 * MiB, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(at, 0x77, 3 * MiB, s), CUDA_SUCCESS);
  std::vector<unsigned char> got(3 * MiB);
  ASSERT_EQ(cuMemcpyDtoHAsync(got.data(), at, got.size(), s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(at, s), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(at, s), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(got, std::vector<unsigned char>(3 * MiB, 0x77));
  EXPECT_EQ(attribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0U);
  EXPECT_EQ(attribute(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 3 * MiB);
}

// cuda.h: INVALID_CONTEXT only for a default stream.
TEST_F(pool, ACreatedStreamNeedsNoCurrentContext) {
  const CUmemoryPool p = make_pool();
  const CUstream s = make_stream();
  CUdeviceptr at = 0, pooled = 0;
  ASSERT_EQ(cuMemAllocAsync(&at, MiB, s), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(at, s), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAllocAsync(&at, MiB, s), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAllocFromPoolAsync(&pooled, MiB, p, s), CUDA_SUCCESS);
  for (const CUstream standard : {CUstream{nullptr}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    CUdeviceptr none = 0;
    EXPECT_EQ(cuMemFreeAsync(at, standard), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuMemFreeAsync(0, standard), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuMemAllocAsync(&none, MiB, standard), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuMemAllocFromPoolAsync(&none, MiB, p, standard), CUDA_ERROR_INVALID_CONTEXT);
  }
  EXPECT_EQ(cuMemFreeAsync(at, s), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(pooled, s), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(0, s), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(ctx_), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_F(pool, ADestroyedContextHasNoDefaultStream) {
  CUcontext other = nullptr;
#if CUDA_VERSION >= 13000
  ASSERT_EQ(cuCtxCreate(&other, nullptr, 0, 0), CUDA_SUCCESS);
#else
  ASSERT_EQ(cuCtxCreate(&other, 0, 0), CUDA_SUCCESS);
#endif
  ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxPushCurrent(other), CUDA_SUCCESS);
  std::thread([&] { EXPECT_EQ(cuCtxDestroy(other), CUDA_SUCCESS); }).join();
  CUdeviceptr at = 0;
  EXPECT_EQ(cuMemAllocAsync(&at, MiB, nullptr), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cuMemFreeAsync(MiB, nullptr), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

// cuda.h: the pool that is current on the device of the stream.
TEST_F(pool, AllocatesOnTheDeviceOfTheStream) {
  start("profile=multi:2");
  CUcontext other = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(other), CUDA_SUCCESS);
  const CUstream s = make_stream();
  ASSERT_EQ(cuCtxSetCurrent(ctx_), CUDA_SUCCESS);
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAllocAsync(&at, MiB, s), CUDA_SUCCESS);
  int device = -1;
  ASSERT_EQ(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at), CUDA_SUCCESS);
  EXPECT_EQ(device, 1);
  EXPECT_EQ(cuMemFreeAsync(at, s), CUDA_SUCCESS);
}

TEST_F(pool, KeepsWhatTheThresholdAllowsAndTrims) {
  const CUmemoryPool p = make_pool();
  cuuint64_t keep = 64 * MiB;
  ASSERT_EQ(cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep), CUDA_SUCCESS);
  const CUstream s = make_stream();
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&at, 8 * MiB, p, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(at, s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 8 * MiB);
  CUdeviceptr again = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&again, 8 * MiB, p, s), CUDA_SUCCESS);
  EXPECT_EQ(again, at);
  ASSERT_EQ(cuMemPoolTrimTo(p, 0), CUDA_SUCCESS);
  EXPECT_EQ(attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 8 * MiB);  // in use
  ASSERT_EQ(cuMemFree(again), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolTrimTo(p, 0), CUDA_SUCCESS);
  EXPECT_EQ(attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0U);
  EXPECT_EQ(cuMemPoolDestroy(p), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolDestroy(p), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(pool, MemoryFreedWithoutAStreamIsReleasedAtTheNextSynchronisation) {
  const CUstream s = make_stream();
  CUmemoryPool p = nullptr;
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&p, 0), CUDA_SUCCESS);
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAllocAsync(&at, 1, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFree(at), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0U);
}

TEST_F(pool, KeptMemoryYieldsToOtherAllocations) {
  start("memory=32M");
  const CUmemoryPool p = make_pool();
  cuuint64_t keep = ~cuuint64_t{0};
  ASSERT_EQ(cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep), CUDA_SUCCESS);
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&at, 30 * MiB, p, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(at, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&at, 30 * MiB), CUDA_SUCCESS);
}

TEST_F(pool, ADestroyedPoolLivesUntilItsLastBlock) {
  const CUmemoryPool p = make_pool();
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&at, MiB, p, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolDestroy(p), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8(at, 1, MiB), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAllocFromPoolAsync(&at, MiB, p, nullptr), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemFreeAsync(at, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  hostcuda_counters c{};
  ASSERT_EQ(hostcuda_get_counters(&c), CUDA_SUCCESS);
  EXPECT_EQ(c.physical_bytes, 0U);
}

// Work ordered after a free may reuse the bytes before the free has run.
TEST_F(pool, AStreamReusesWhatItHasFreedBeforeTheFreeHasRun) {
  const CUmemoryPool p = make_pool();
  const CUstream s = make_stream(), t = make_stream();
  CUdeviceptr a = 0, b = 0, c = 0, both = 0, small = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&a, 3 * MiB, p, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(a, s), CUDA_SUCCESS);  // creates a chunk of 4 MiB
  ASSERT_EQ(cuMemAllocFromPoolAsync(&a, 2 * MiB, p, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocFromPoolAsync(&b, 2 * MiB, p, s), CUDA_SUCCESS);
  EXPECT_EQ(attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 4 * MiB);
  ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(a, 1, 2 * MiB, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(b, 2, 2 * MiB, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(b, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(a, s), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(a, s), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(attribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0U);
  ASSERT_EQ(cuMemPoolTrimTo(p, 0), CUDA_SUCCESS);
  EXPECT_EQ(attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 4 * MiB);  // the free is pending
  ASSERT_EQ(cuMemAllocFromPoolAsync(&c, 2 * MiB, p, t), CUDA_SUCCESS);     // not after the free
  EXPECT_TRUE(c < std::min(a, b) || c >= std::min(a, b) + 4 * MiB);
  // Adjacent ranges merge, and a smaller block may overlap bytes that queued work still writes.
  ASSERT_EQ(cuMemAllocFromPoolAsync(&both, 4 * MiB, p, s), CUDA_SUCCESS);
  EXPECT_EQ(both, std::min(a, b));
  ASSERT_EQ(cuMemFreeAsync(both, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocFromPoolAsync(&small, 1000, p, s), CUDA_SUCCESS);
  EXPECT_EQ(small, both);
  ASSERT_EQ(cuMemsetD8Async(small, 3, 1000, s), CUDA_SUCCESS);
  ASSERT_EQ(hostcuda_release(s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  unsigned char got = 0;
  ASSERT_EQ(cuMemcpyDtoH(&got, small + 999, 1), CUDA_SUCCESS);
  EXPECT_EQ(got, 3);
  EXPECT_EQ(cuMemsetD8(small + MiB, 1, 1), CUDA_ERROR_INVALID_VALUE);  // freed; all work has run
  ASSERT_EQ(cuMemFreeAsync(small, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(c, t), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolDestroy(p), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  hostcuda_counters counted{};
  ASSERT_EQ(hostcuda_get_counters(&counted), CUDA_SUCCESS);
  EXPECT_EQ(counted.physical_bytes, 0U);
  EXPECT_EQ(counted.violations, 0U);
}

TEST_F(pool, AnotherStreamReusesAfterAnEventIfEnabled) {
  for (const int follow : {1, 0}) {
    start("profile=h200");
    const CUmemoryPool p = make_pool();
    int value = follow;
    ASSERT_EQ(cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &value),
              CUDA_SUCCESS);
    const CUstream s = make_stream(), t = make_stream();
    const CUevent e = make_event();
    CUdeviceptr early = 0, late = 0, got = 0;
    ASSERT_EQ(cuMemAllocFromPoolAsync(&early, 2 * MiB, p, s), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAllocFromPoolAsync(&late, 2 * MiB, p, s), CUDA_SUCCESS);
    ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
    ASSERT_EQ(cuMemFreeAsync(early, s), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
    ASSERT_EQ(cuMemFreeAsync(late, s), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(t, e, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAllocFromPoolAsync(&got, 2 * MiB, p, t), CUDA_SUCCESS);
    EXPECT_EQ(got == early, follow == 1);
    ASSERT_EQ(cuMemAllocFromPoolAsync(&got, 2 * MiB, p, t), CUDA_SUCCESS);
    EXPECT_NE(got, late);  // freed after the event
    ASSERT_EQ(hostcuda_release(s), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  }
}

// Random programs with three streams: each block keeps its bytes from allocation to free.
TEST_F(pool, BlocksKeepTheirBytesInEverySchedule) {
  for (const char *schedule : {"threads", "seeded:1", "seeded:2", "jitter:3"}) {
    start(std::string("profile=h200,jitter_us=20,schedule=") + schedule);
    const CUmemoryPool p = make_pool();
    cuuint64_t keep = ~cuuint64_t{0};
    ASSERT_EQ(cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep), CUDA_SUCCESS);
    const CUstream streams[] = {make_stream(), make_stream(), make_stream()};
    const CUevent e = make_event();
    struct live {
      CUdeviceptr at;
      std::size_t bytes;
      int on;
      unsigned char value;
    };
    struct seen {
      unsigned char first, last, value;
    };
    std::vector<live> blocks;
    std::vector<std::unique_ptr<seen>> reads;
    std::uint64_t dice = 7;
    const auto roll = [&](std::uint64_t n) {
      dice = dice * 6364136223846793005U + 1442695040888963407U;
      return (dice >> 33) % n;
    };
    for (int step = 0; step < 2500; ++step) {
      if (roll(20) == 0) {
        const auto from = roll(3), to = roll(3);
        ASSERT_EQ(cuEventRecord(e, streams[from]), CUDA_SUCCESS);
        ASSERT_EQ(cuStreamWaitEvent(streams[to], e, 0), CUDA_SUCCESS);
      }
      if (blocks.size() < 3 || (blocks.size() < 24 && roll(2) == 0)) {
        live b{0, roll(4) == 0 ? MiB + roll(3 * MiB) : 1 + roll(40000), static_cast<int>(roll(3)),
               static_cast<unsigned char>(1 + step % 250)};
        ASSERT_EQ(cuMemAllocFromPoolAsync(&b.at, b.bytes, p, streams[b.on]), CUDA_SUCCESS);
        for (const live &other : blocks)
          ASSERT_TRUE(b.at + b.bytes <= other.at || other.at + other.bytes <= b.at);
        ASSERT_EQ(cuMemsetD8Async(b.at, b.value, 1, streams[b.on]), CUDA_SUCCESS);
        ASSERT_EQ(cuMemsetD8Async(b.at + b.bytes - 1, b.value, 1, streams[b.on]), CUDA_SUCCESS);
        blocks.push_back(b);
      } else {
        const auto which = static_cast<std::ptrdiff_t>(roll(blocks.size()));
        const live b = blocks[static_cast<std::size_t>(which)];
        blocks.erase(blocks.begin() + which);
        seen *const r = reads.emplace_back(std::make_unique<seen>(seen{0, 0, b.value})).get();
        ASSERT_EQ(cuMemcpyDtoHAsync(&r->first, b.at, 1, streams[b.on]), CUDA_SUCCESS);
        ASSERT_EQ(cuMemcpyDtoHAsync(&r->last, b.at + b.bytes - 1, 1, streams[b.on]), CUDA_SUCCESS);
        ASSERT_EQ(cuMemFreeAsync(b.at, streams[b.on]), CUDA_SUCCESS);
      }
    }
    for (const live &b : blocks) ASSERT_EQ(cuMemFreeAsync(b.at, streams[b.on]), CUDA_SUCCESS);
    EXPECT_EQ(attribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0U);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    for (const auto &r : reads) {
      ASSERT_EQ(r->first, r->value) << schedule;
      ASSERT_EQ(r->last, r->value) << schedule;
    }
    ASSERT_EQ(cuMemPoolTrimTo(p, 0), CUDA_SUCCESS);
    EXPECT_EQ(attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0U);  // all ranges merged
    hostcuda_counters c{};
    ASSERT_EQ(hostcuda_get_counters(&c), CUDA_SUCCESS);
    EXPECT_EQ(c.violations, 0U);
  }
}

TEST_F(pool, AccessOfPeers) {
  start("profile=multi:2");
  const CUmemoryPool p = make_pool();
  CUmemLocation there{};
  there.type = CU_MEM_LOCATION_TYPE_DEVICE;
  there.id = 1;
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  ASSERT_EQ(cuMemPoolGetAccess(&flags, p, &there), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  CUmemAccessDesc d{};
  d.location = there;
  d.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  ASSERT_EQ(cuMemPoolSetAccess(p, &d, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolGetAccess(&flags, p, &there), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

// Regression: copies and memsets of a device without access to the pool succeeded.
TEST_F(pool, CopiesAndMemsetsNeedTheAccessOfTheirDevice) {
  start("profile=multi:2");
  CUcontext other = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  const CUmemoryPool p = make_pool();
  CUdeviceptr at = 0, theirs = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&at, 4096, p, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8(at, 5, 4096), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(other), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc(&theirs, 4096), CUDA_SUCCESS);
  std::vector<unsigned char> bytes(4096);
  EXPECT_EQ(cuMemsetD8(at, 1, 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD8Async(at, 1, 4096, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoH(bytes.data(), at, 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoDAsync(theirs, at, 4096, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoDAsync(at, theirs, 4096, nullptr), CUDA_ERROR_INVALID_VALUE);
  // Each context of a peer copy accesses its own side.
  EXPECT_EQ(cuMemcpyPeer(theirs, other, at, ctx_, 4096), CUDA_SUCCESS);
  CUmemAccessDesc d{};
  d.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  d.location.id = 1;
  d.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  ASSERT_EQ(cuMemPoolSetAccess(p, &d, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoH(bytes.data(), at, 4096), CUDA_SUCCESS);
  EXPECT_EQ(bytes[4095], 5);
  EXPECT_EQ(cuMemsetD8(at, 1, 4096), CUDA_SUCCESS);
  // Access that is removed while a copy is queued: the copy fails when it runs.
  const CUstream s = make_stream();
  ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(at, 2, 4096, s), CUDA_SUCCESS);
  d.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  ASSERT_EQ(cuMemPoolSetAccess(p, &d, 1), CUDA_SUCCESS);
  ASSERT_EQ(hostcuda_release(s), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
}

// Regression: an allocation of no bytes was refused.
TEST_F(pool, NoBytesAreANullAddress) {
  const CUmemoryPool p = make_pool();
  const CUstream s = make_stream();
  for (const bool from_pool : {false, true}) {
    CUdeviceptr at = 1;
    EXPECT_EQ(from_pool ? cuMemAllocFromPoolAsync(&at, 0, p, s) : cuMemAllocAsync(&at, 0, s),
              CUDA_SUCCESS);
    EXPECT_EQ(at, 0U);
    EXPECT_EQ(cuMemFreeAsync(at, s), CUDA_SUCCESS);
  }
  const CUstream dead = make_stream();
  ASSERT_EQ(cuStreamDestroy(dead), CUDA_SUCCESS);
  CUdeviceptr at = 1;
  EXPECT_EQ(cuMemAllocAsync(&at, 0, dead), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuMemAllocAsync(nullptr, 0, s), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAlloc(&at, 0), CUDA_ERROR_INVALID_VALUE);
}

#if CUDA_VERSION >= 12020
// Regression: maxSize was ignored.
TEST_F(pool, DoesNotGrowBeyondItsMaximum) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  props.maxSize = 4 * MiB;
  CUmemoryPool p = nullptr;
  ASSERT_EQ(cuMemPoolCreate(&p, &props), CUDA_SUCCESS);
  cuuint64_t keep = ~cuuint64_t{0};
  ASSERT_EQ(cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep), CUDA_SUCCESS);
  const CUstream s = make_stream();
  CUdeviceptr a = 0, b = 0, c = 0;
  EXPECT_EQ(cuMemAllocFromPoolAsync(&a, 6 * MiB, p, s), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuMemAllocFromPoolAsync(&a, 2 * MiB, p, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocFromPoolAsync(&b, 2 * MiB, p, s), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAllocFromPoolAsync(&c, 1, p, s), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAllocAsync(&c, 1, s), CUDA_SUCCESS) << "other pools are not limited";
  ASSERT_EQ(cuMemFreeAsync(a, s), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAllocFromPoolAsync(&a, MiB, p, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(a, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(b, s), CUDA_SUCCESS);
  // Two empty chunks yield to a block that fits in neither.
  EXPECT_EQ(cuMemAllocFromPoolAsync(&a, 4 * MiB, p, s), CUDA_SUCCESS);
  EXPECT_EQ(attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 4 * MiB);
  EXPECT_EQ(attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 4 * MiB);
}
#endif

// Regression: clients that skip what is not supported saw an invalid argument.
TEST_F(pool, ManagedPoolsAreNotSupported) {
  CUmemPoolProps props{};
  props.allocType = static_cast<CUmemAllocationType>(2);  // CU_MEM_ALLOCATION_TYPE_MANAGED
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemoryPool p = nullptr;
  EXPECT_EQ(cuMemPoolCreate(&p, &props), CUDA_ERROR_NOT_SUPPORTED);
  props.allocType = static_cast<CUmemAllocationType>(0);
  EXPECT_EQ(cuMemPoolCreate(&p, &props), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace hostcuda_tests
