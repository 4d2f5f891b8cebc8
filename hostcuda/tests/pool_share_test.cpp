// Pools shared by POSIX descriptor.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "execution_fixture.h"
#include "second_process.h"

namespace hostcuda_tests {
namespace {

class shared_pool : public machine_test {
 protected:
  static constexpr std::size_t kBytes = 3 * MiB + 700;

  static CUmemoryPool make(CUmemAllocationHandleType types) {
    CUmemPoolProps props{};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.handleTypes = types;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemoryPool p = nullptr;
    EXPECT_EQ(cuMemPoolCreate(&p, &props), CUDA_SUCCESS);
    return p;
  }

  static CUmemoryPool import(int fd) {
    CUmemoryPool p = nullptr;
    EXPECT_EQ(cuMemPoolImportFromShareableHandle(
                  &p, reinterpret_cast<void *>(static_cast<intptr_t>(fd)), kFd, 0),
              CUDA_SUCCESS);
    return p;
  }

  static unsigned char byte_at(CUdeviceptr at) {
    unsigned char byte = 0;
    EXPECT_EQ(cuMemcpyDtoH(&byte, at, 1), CUDA_SUCCESS);
    return byte;
  }

  static std::uint64_t physical_bytes() {
    hostcuda_counters c{};
    EXPECT_EQ(hostcuda_get_counters(&c), CUDA_SUCCESS);
    return c.physical_bytes;
  }

  static std::string as_text(const CUmemPoolPtrExportData &data) {
    std::string out;
    for (const unsigned char c : data.reserved) {
      char two[3];
      std::snprintf(two, sizeof two, "%02x", c);
      out += two;
    }
    return out;
  }

  static CUmemPoolPtrExportData from_text(const char *text) {
    CUmemPoolPtrExportData data{};
    for (std::size_t i = 0; i < sizeof data.reserved; ++i) {
      unsigned v = 0;
      std::sscanf(text + 2 * i, "%2x", &v);
      data.reserved[i] = static_cast<unsigned char>(v);
    }
    return data;
  }

  static constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
};

// Regression: the attribute said that pools have descriptors, and creation failed.
TEST_F(shared_pool, TheAttributeAgreesWithCreation) {
  for (const char *name : {"h200", "a100", "multi:2", "wsl2", "mig", "vgpu-no-vmm"}) {
    start(std::string("profile=") + name);
    int types = 0, pools = 0;
    ASSERT_EQ(cuDeviceGetAttribute(&types, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 0),
              CUDA_SUCCESS);
    ASSERT_EQ(cuDeviceGetAttribute(&pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0),
              CUDA_SUCCESS);
    for (int type = 0; type <= 8; type = type == 0 ? 1 : 2 * type) {
      CUmemPoolProps props{};
      props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
      props.handleTypes = static_cast<CUmemAllocationHandleType>(type);
      props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      CUmemoryPool p = nullptr;
      const bool wsl2 = std::strcmp(name, "wsl2") == 0 && type != 0;  // on purpose
      const bool works = pools == 1 && (types & type) == type && !wsl2;
      EXPECT_EQ(cuMemPoolCreate(&p, &props), works ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED)
          << name << ' ' << type;
    }
  }
}

// Not an independent test: entry of the second process.
TEST_F(shared_pool, ImporterRole) {
  const char *fd = std::getenv("HOSTCUDA_TEST_POOL_FD");
  if (fd == nullptr) return;
  const CUmemoryPool p = import(std::atoi(fd));
  for (const char *which : {"HOSTCUDA_TEST_POOL_FIRST", "HOSTCUDA_TEST_POOL_LATER"}) {
    CUmemPoolPtrExportData data = from_text(std::getenv(which));
    CUdeviceptr at = 0;
    ASSERT_EQ(cuMemPoolImportPointer(&at, p, &data), CUDA_SUCCESS);
    EXPECT_EQ(byte_at(at), 0x21);
    EXPECT_EQ(byte_at(at + kBytes - 1), 0x21);
    EXPECT_EQ(cuMemsetD8(at + kBytes, 1, 1), CUDA_ERROR_INVALID_VALUE) << "beyond the block";
    ASSERT_EQ(cuMemsetD8(at, 0x42, kBytes), CUDA_SUCCESS);
    ASSERT_EQ(cuMemFree(at), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8(at, 1, 1), CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(physical_bytes(), 0U) << "imported memory is charged to its creator";
}

// Regression: an import took its record of memory from what all threads share, without the lock.
TEST_F(shared_pool, ImportsOnManyThreadsSpoilNoMemory) {
  start("profile=h200,unbacked");
  const CUmemoryPool p = make(kFd);
  constexpr int rounds = 200000;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      ASSERT_EQ(cuCtxSetCurrent(ctx_), CUDA_SUCCESS);
      CUmemPoolPtrExportData none{};
      CUdeviceptr at = 0;
      for (int i = 0; i < rounds; ++i)
        ASSERT_EQ(cuMemPoolImportPointer(&at, p, &none), CUDA_ERROR_INVALID_VALUE);
    });
  }
  for (int i = 0; i < rounds; ++i) ASSERT_EQ(cuMemRelease(create(kPage)), CUDA_SUCCESS);
  for (std::thread &t : threads) t.join();
  EXPECT_EQ(physical_bytes(), 0U);
}

TEST_F(shared_pool, AnotherProcessSeesTheSameBytes) {
  const CUmemoryPool p = make(kFd);
  CUdeviceptr before = 0, first = 0, later = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&before, 5000, p, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocFromPoolAsync(&first, kBytes, p, nullptr), CUDA_SUCCESS);
  int fd = -1;
  ASSERT_EQ(cuMemPoolExportToShareableHandle(&fd, p, kFd, 0), CUDA_SUCCESS);
  // In a chunk that is created after the export of the pool.
  ASSERT_EQ(cuMemAllocFromPoolAsync(&later, kBytes, p, nullptr), CUDA_SUCCESS);
  CUmemPoolPtrExportData data[2];
  ASSERT_EQ(cuMemPoolExportPointer(&data[0], first), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolExportPointer(&data[1], later), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8(before, 0x77, 5000), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8(first, 0x21, kBytes), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8(later, 0x21, kBytes), CUDA_SUCCESS);
  const int passed = dup(fd);  // without close-on-exec
  close(fd);
  EXPECT_EQ(
      run_again("shared_pool.ImporterRole", {"HOSTCUDA_TEST_POOL_FD=" + std::to_string(passed),
                                             "HOSTCUDA_TEST_POOL_FIRST=" + as_text(data[0]),
                                             "HOSTCUDA_TEST_POOL_LATER=" + as_text(data[1])}),
      0);
  close(passed);
  EXPECT_EQ(byte_at(first), 0x42);
  EXPECT_EQ(byte_at(later + kBytes - 1), 0x42);
  EXPECT_EQ(byte_at(before + 4999), 0x77);
  for (const CUdeviceptr at : {before, first, later}) ASSERT_EQ(cuMemFree(at), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolDestroy(p), CUDA_SUCCESS);
  EXPECT_EQ(physical_bytes(), 0U);
}

TEST_F(shared_pool, ImportedBlocksAreFreedInStreamOrder) {
  for (const char *memory : {"backed", "lazy", "unbacked"}) {
    start(std::string("profile=h200,") + memory);
    const CUmemoryPool p = make(kFd);
    const CUstream s = make_stream();
    CUdeviceptr at = 0;
    ASSERT_EQ(cuMemAllocFromPoolAsync(&at, kBytes, p, nullptr), CUDA_SUCCESS);
    int fd = -1;
    ASSERT_EQ(cuMemPoolExportToShareableHandle(&fd, p, kFd, 0), CUDA_SUCCESS);
    const CUmemoryPool q = import(fd);
    CUmemPoolPtrExportData data;
    ASSERT_EQ(cuMemPoolExportPointer(&data, at), CUDA_SUCCESS);
    const std::uint64_t charged = physical_bytes();
    CUdeviceptr twice[2] = {};
    for (CUdeviceptr &i : twice) {
      ASSERT_EQ(cuMemPoolImportPointer(&i, q, &data), CUDA_SUCCESS);
    }
    EXPECT_EQ(physical_bytes(), charged);
    ASSERT_EQ(cuMemsetD8Async(twice[0], 9, kBytes, s), CUDA_SUCCESS);
    ASSERT_EQ(cuMemFreeAsync(twice[0], s), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    if (std::strcmp(memory, "unbacked") != 0) {
      EXPECT_EQ(byte_at(at + kBytes - 1), 9);
    }
    // The pool object may go before its last block, and the exporter's pool before the importer's.
    ASSERT_EQ(cuMemPoolDestroy(q), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8(twice[1], 3, kBytes), CUDA_SUCCESS);
    ASSERT_EQ(cuMemFreeAsync(at, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cuMemPoolDestroy(p), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(physical_bytes(), 0U);
    EXPECT_EQ(cuMemFree(twice[1]), CUDA_SUCCESS);
    EXPECT_EQ(violations(), 0U);
    close(fd);
  }
}

TEST_F(shared_pool, RefusesWhatCannotBeShared) {
  const CUmemoryPool p = make(kFd);
  const CUmemoryPool alone = make(CU_MEM_HANDLE_TYPE_NONE);
  int fd = -1, other_fd = -1;
  EXPECT_EQ(cuMemPoolExportToShareableHandle(&fd, alone, kFd, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolExportToShareableHandle(&fd, p, kFd, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolExportToShareableHandle(&fd, p, static_cast<CUmemAllocationHandleType>(8), 0),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemPoolExportToShareableHandle(&fd, p, kFd, 0), CUDA_SUCCESS);
  const CUmemoryPool q = import(fd);
  // An imported pool allocates nothing.
  CUdeviceptr at = 0, own = 0, i = 0;
  EXPECT_EQ(cuMemAllocFromPoolAsync(&at, 100, q, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceSetMemPool(0, q), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolExportToShareableHandle(&other_fd, q, kFd, 0), CUDA_ERROR_INVALID_VALUE);
  // Only the start of a live block of a shareable pool is exported.
  CUmemPoolPtrExportData data{};
  ASSERT_EQ(cuMemAllocFromPoolAsync(&own, 100, alone, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolExportPointer(&data, own), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemAllocFromPoolAsync(&at, 4096, p, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolExportPointer(&data, at + 512), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemPoolExportPointer(&data, at), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolImportPointer(&i, p, &data), CUDA_ERROR_INVALID_VALUE);
  // Export data is checked, whatever is in it.
  const CUmemPoolPtrExportData good = data;
  for (std::size_t byte = 0; byte < 40; ++byte) {
    for (const unsigned char flip : {0x01, 0x80}) {
      data = good;
      data.reserved[byte] ^= flip;
      const CUresult r = cuMemPoolImportPointer(&i, q, &data);
      if (r != CUDA_SUCCESS) {
        EXPECT_EQ(r, CUDA_ERROR_INVALID_VALUE) << byte;
        continue;
      }
      EXPECT_EQ(cuMemFree(i), CUDA_SUCCESS);  // another range of the pool's file
    }
  }
  // A pool's descriptor is not that of an allocation, and the reverse.
  CUmemGenericAllocationHandle h = 0;
  EXPECT_EQ(
      cuMemImportFromShareableHandle(&h, reinterpret_cast<void *>(static_cast<intptr_t>(fd)), kFd),
      CUDA_ERROR_INVALID_VALUE);
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.requestedHandleTypes = kFd;
  ASSERT_EQ(cuMemCreate(&h, kPage, &prop, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemExportToShareableHandle(&other_fd, h, kFd, 0), CUDA_SUCCESS);
  CUmemoryPool none = nullptr;
  for (const int bad : {other_fd, -1, 0}) {
    EXPECT_EQ(cuMemPoolImportFromShareableHandle(
                  &none, reinterpret_cast<void *>(static_cast<intptr_t>(bad)), kFd, 0),
              CUDA_ERROR_INVALID_VALUE);
  }
  close(other_fd);
  close(fd);
}

}  // namespace
}  // namespace hostcuda_tests
