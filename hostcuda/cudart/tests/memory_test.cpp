// Memory, copies and memsets, pools.
#include <unistd.h>

#include "runtime_fixture.h"

namespace cudart_tests {
namespace {

class runtime_memory : public runtime_test {};

TEST_F(runtime_memory, bytes_survive_the_way_to_the_device_and_back) {
  const auto in = pattern(100'000);
  void *const at = allocate(in.size());
  void *const other = allocate(in.size());
  ASSERT_EQ(cudaMemcpy(at, in.data(), in.size(), cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(other, at, in.size(), cudaMemcpyDeviceToDevice), cudaSuccess);
  std::vector<unsigned char> out(in.size());
  ASSERT_EQ(cudaMemcpy(out.data(), other, out.size(), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(out, in);
  std::vector<unsigned char> host(in.size());
  ASSERT_EQ(cudaMemcpy(host.data(), in.data(), in.size(), cudaMemcpyHostToHost), cudaSuccess);
  EXPECT_EQ(host, in);
  EXPECT_EQ(cudaMemcpy(at, in.data(), 1, static_cast<cudaMemcpyKind>(9)),
            cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaFree(at), cudaSuccess);
  EXPECT_EQ(cudaFree(other), cudaSuccess);
  EXPECT_EQ(cudaFree(other), cudaErrorInvalidValue);
}

TEST_F(runtime_memory, nothing_is_allocated_as_null) {
  void *at = &at;
  EXPECT_EQ(cudaMalloc(&at, 0), cudaSuccess);
  EXPECT_EQ(at, nullptr);
  EXPECT_EQ(cudaMalloc(&at, std::size_t{1} << 45), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // not sticky
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(nullptr), cudaSuccess);
}

TEST_F(runtime_memory, asynchronous_copies_and_memsets_follow_their_stream) {
  const auto in = pattern(1 << 20);
  void *const at = allocate(in.size());
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  void *pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, in.size()), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(at, in.data(), in.size(), cudaMemcpyHostToDevice, stream), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(at, 0xAB, 100, stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(pinned, at, in.size(), cudaMemcpyDeviceToHost, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  const auto *bytes = static_cast<unsigned char *>(pinned);
  EXPECT_EQ(bytes[99], 0xAB);
  EXPECT_EQ(std::memcmp(bytes + 100, in.data() + 100, in.size() - 100), 0);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(runtime_memory, rectangles_leave_the_gap_between_rows) {
  std::size_t pitch = 0;
  void *at = nullptr;
  ASSERT_EQ(cudaMallocPitch(&at, &pitch, 100, 8), cudaSuccess);
  ASSERT_GE(pitch, 100U);
  ASSERT_EQ(cudaMemset(at, 0xEE, pitch * 8), cudaSuccess);
  const auto in = pattern(100 * 8);
  ASSERT_EQ(cudaMemcpy2D(at, pitch, in.data(), 100, 100, 8, cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaMemset2D(at, pitch, 0x11, 10, 4), cudaSuccess);
  std::vector<unsigned char> out(pitch * 8);
  ASSERT_EQ(cudaMemcpy(out.data(), at, out.size(), cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(out[pitch * 3 + 9], 0x11);
  EXPECT_EQ(out[pitch * 3 + 10], in[310]);
  EXPECT_EQ(out[pitch * 7 + 99], in[799]);
  if (pitch > 100) {
    EXPECT_EQ(out[100], 0xEE);
  }
  EXPECT_EQ(cudaMemcpy2D(at, 50, in.data(), 100, 100, 8, cudaMemcpyHostToDevice),
            cudaErrorInvalidPitchValue);
}

TEST_F(runtime_memory, boxes_are_layers_of_rectangles) {
  cudaPitchedPtr at{};
  const cudaExtent extent = {16, 4, 3};
  ASSERT_EQ(cudaMalloc3D(&at, extent), cudaSuccess);
  auto in = pattern(16 * 4 * 3);
  cudaMemcpy3DParms p{};
  p.srcPtr = {in.data(), 16, 16, 4};
  p.dstPtr = at;
  p.extent = extent;
  p.kind = cudaMemcpyHostToDevice;
  ASSERT_EQ(cudaMemcpy3D(&p), cudaSuccess);
  std::vector<unsigned char> out(in.size());
  p.srcPtr = at;
  p.dstPtr = {out.data(), 16, 16, 4};
  p.kind = cudaMemcpyDeviceToHost;
  ASSERT_EQ(cudaMemcpy3D(&p), cudaSuccess);
  EXPECT_EQ(out, in);
}

TEST_F(runtime_memory, copies_between_devices) {
  start("profile=multi:2,memory=1G");
  const auto in = pattern(4096);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  void *const there = allocate(4096);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  void *const here = allocate(4096);
  ASSERT_EQ(cudaMemcpy(here, in.data(), in.size(), cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaMemcpyPeer(there, 1, here, 0, in.size()), cudaSuccess);
  std::vector<unsigned char> out(in.size());
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(out.data(), there, out.size(), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(out, in);
}

TEST_F(runtime_memory, addresses_are_of_four_kinds) {
  void *const device = allocate(4096);
  void *pinned = nullptr;
  void *managed = nullptr;
  int pageable = 0;
  ASSERT_EQ(cudaHostAlloc(&pinned, 4096, cudaHostAllocMapped), cudaSuccess);
  ASSERT_EQ(cudaMallocManaged(&managed, 4096, cudaMemAttachGlobal), cudaSuccess);
  cudaPointerAttributes a{};
  ASSERT_EQ(cudaPointerGetAttributes(&a, device), cudaSuccess);
  EXPECT_EQ(a.type, cudaMemoryTypeDevice);
  EXPECT_EQ(a.devicePointer, device);
  EXPECT_EQ(a.hostPointer, nullptr);
  ASSERT_EQ(cudaPointerGetAttributes(&a, pinned), cudaSuccess);
  EXPECT_EQ(a.type, cudaMemoryTypeHost);
  EXPECT_EQ(a.hostPointer, pinned);
  ASSERT_EQ(cudaPointerGetAttributes(&a, managed), cudaSuccess);
  EXPECT_EQ(a.type, cudaMemoryTypeManaged);
  ASSERT_EQ(cudaPointerGetAttributes(&a, &pageable), cudaSuccess);
  EXPECT_EQ(a.type, cudaMemoryTypeUnregistered);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(runtime_memory, host_memory_is_registered_once) {
  std::vector<char> own(1 << 16);
  ASSERT_EQ(cudaHostRegister(own.data(), own.size(), cudaHostRegisterMapped), cudaSuccess);
  EXPECT_EQ(cudaHostRegister(own.data(), own.size(), 0), cudaErrorHostMemoryAlreadyRegistered);
  void *device = nullptr;
  ASSERT_EQ(cudaHostGetDevicePointer(&device, own.data(), 0), cudaSuccess);
  EXPECT_NE(device, nullptr);
  EXPECT_EQ(cudaHostUnregister(own.data()), cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(own.data()), cudaErrorHostMemoryNotRegistered);
}

TEST_F(runtime_memory, free_memory_shrinks_and_grows) {
  std::size_t before = 0;
  std::size_t during = 0;
  std::size_t after = 0;
  std::size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  void *const at = allocate(64 << 20);
  ASSERT_EQ(cudaMemGetInfo(&during, &total), cudaSuccess);
  ASSERT_EQ(cudaFree(at), cudaSuccess);
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_LE(during + (64U << 20), before);
  EXPECT_EQ(after, before);
}

class runtime_pools : public runtime_test {};

TEST_F(runtime_pools, memory_in_stream_order) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  void *at = nullptr;
  ASSERT_EQ(cudaMallocAsync(&at, 5000, stream), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(at, 0x5A, 5000, stream), cudaSuccess);
  unsigned char last = 0;
  ASSERT_EQ(
      cudaMemcpyAsync(&last, static_cast<char *>(at) + 4999, 1, cudaMemcpyDeviceToHost, stream),
      cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(at, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(last, 0x5A);
}

TEST_F(runtime_pools, a_pool_of_the_program) {
  cudaMemPoolProps p{};
  p.allocType = cudaMemAllocationTypePinned;
  p.handleTypes = cudaMemHandleTypePosixFileDescriptor;
  p.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool = nullptr;
  ASSERT_EQ(cudaMemPoolCreate(&pool, &p), cudaSuccess);
  std::uint64_t threshold = 1 << 20;
  ASSERT_EQ(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold),
            cudaSuccess);
  std::uint64_t got = 0;
  ASSERT_EQ(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &got), cudaSuccess);
  EXPECT_EQ(got, threshold);
  void *at = nullptr;
  ASSERT_EQ(cudaMallocFromPoolAsync(&at, 1000, pool, nullptr), cudaSuccess);
  ASSERT_EQ(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &got), cudaSuccess);
  EXPECT_GE(got, 1000U);
  cudaMemAccessFlags flags{};
  cudaMemLocation where = {cudaMemLocationTypeDevice, 0};
  ASSERT_EQ(cudaMemPoolGetAccess(&flags, pool, &where), cudaSuccess);
  EXPECT_EQ(flags, cudaMemAccessFlagsProtReadWrite);

  // The same process may import what it exports.
  const auto in = pattern(1000);
  ASSERT_EQ(cudaMemcpy(at, in.data(), in.size(), cudaMemcpyHostToDevice), cudaSuccess);
  int fd = -1;
  ASSERT_EQ(cudaMemPoolExportToShareableHandle(&fd, pool, cudaMemHandleTypePosixFileDescriptor, 0),
            cudaSuccess);
  cudaMemPoolPtrExportData data{};
  ASSERT_EQ(cudaMemPoolExportPointer(&data, at), cudaSuccess);
  cudaMemPool_t imported = nullptr;
  ASSERT_EQ(cudaMemPoolImportFromShareableHandle(
                &imported, reinterpret_cast<void *>(static_cast<std::intptr_t>(fd)),
                cudaMemHandleTypePosixFileDescriptor, 0),
            cudaSuccess);
  void *again = nullptr;
  ASSERT_EQ(cudaMemPoolImportPointer(&again, imported, &data), cudaSuccess);
  std::vector<unsigned char> out(in.size());
  ASSERT_EQ(cudaMemcpy(out.data(), again, out.size(), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(out, in);
  ::close(fd);

  ASSERT_EQ(cudaFreeAsync(at, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  ASSERT_EQ(cudaMemPoolTrimTo(pool, 0), cudaSuccess);
  ASSERT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
}

TEST_F(runtime_pools, the_default_pool_is_the_devices) {
  cudaMemPool_t standard = nullptr;
  cudaMemPool_t current = nullptr;
  ASSERT_EQ(cudaDeviceGetDefaultMemPool(&standard, 0), cudaSuccess);
  ASSERT_EQ(cudaDeviceGetMemPool(&current, 0), cudaSuccess);
  EXPECT_EQ(current, standard);
  EXPECT_EQ(cudaDeviceGetDefaultMemPool(&standard, 9), cudaErrorInvalidDevice);
}

}  // namespace
}  // namespace cudart_tests
