// The client of limits_test: memory that the driver serves, under a limit of 64 MiB. limits CASE
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/preload/clients/semantics.h"

namespace client {
namespace {

constexpr std::size_t MiB = std::size_t{1} << 20, limit = 64 * MiB;

bool maps_memory() {
  int yes = 0;
  return cuDeviceGetAttribute(&yes, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0) ==
             CUDA_SUCCESS &&
         yes != 0;
}

// What the program is told that it can have.
std::size_t left() {
  std::size_t free = 0, total = 0;
  if (cuMemGetInfo(&free, &total) != CUDA_SUCCESS || total != limit) return SIZE_MAX;
  return free;
}

int own_mappings() {
  if (use_device(0) != 0) return 1;
  if (!maps_memory()) return 77;
  CUmemGenericAllocationHandle first = 0, second = 0, again = 0;
  CLIENT_CHECK(create_memory(&first, 40 * MiB));
  CLIENT_EXPECT(left() == 24 * MiB);
  CLIENT_EXPECT(create_memory(&second, 40 * MiB) == CUDA_ERROR_OUT_OF_MEMORY);
  CUdeviceptr block = 0;
  CLIENT_EXPECT(cuMemAlloc(&block, 40 * MiB) == CUDA_ERROR_OUT_OF_MEMORY);
  CUdeviceptr at = 0;
  CLIENT_CHECK(cuMemAddressReserve(&at, 40 * MiB, 0, 0, 0));
  CLIENT_CHECK(cuMemMap(at, 40 * MiB, 0, first, 0));
  CLIENT_CHECK(cuMemRelease(first));
  CLIENT_EXPECT(left() == 24 * MiB);
  // A handle keeps it when it is mapped no more.
  CLIENT_CHECK(cuMemRetainAllocationHandle(&again, reinterpret_cast<void *>(at + 3 * MiB)));
  CLIENT_CHECK(cuMemUnmap(at, 40 * MiB));
  CLIENT_EXPECT(left() == 24 * MiB);
  CLIENT_EXPECT(create_memory(&second, 40 * MiB) == CUDA_ERROR_OUT_OF_MEMORY);
  CLIENT_EXPECT(cuMemRelease(12345) != CUDA_SUCCESS);
  CLIENT_CHECK(cuMemRelease(again));
  CLIENT_EXPECT(left() == limit);
  CLIENT_CHECK(create_memory(&second, 64 * MiB));
  CLIENT_EXPECT(left() == 0);
  CLIENT_CHECK(cuMemRelease(second));
  CLIENT_CHECK(cuMemAddressFree(at, 40 * MiB));
  return 0;
}

// What Stillmap keeps is free to the program, whoever serves it.
int kept_memory() {
  if (use_device(0) != 0) return 1;
  const CUdeviceptr block = block_of(48 * MiB);
  CLIENT_EXPECT(block != 0);
  CLIENT_CHECK(cuMemFree(block));
  CLIENT_EXPECT(left() == limit);
  CUdeviceptr managed = 0;
  CLIENT_CHECK(cuMemAllocManaged(&managed, 40 * MiB, CU_MEM_ATTACH_GLOBAL));
  CLIENT_CHECK(cuMemFree(managed));
  if (!maps_memory()) return 0;
  CLIENT_CHECK(cuMemFree(block_of(48 * MiB)));
  CUmemGenericAllocationHandle handle = 0;
  CLIENT_CHECK(create_memory(&handle, 40 * MiB));
  CLIENT_CHECK(cuMemRelease(handle));
  return 0;
}

// A device with 64 MiB, all of which the allocator has kept, and no limit.
int kept_device() {
  if (use_device(0) != 0) return 1;
  std::size_t free = 0, total = 0;
  CLIENT_CHECK(cuMemGetInfo(&free, &total));
  const CUdeviceptr block = block_of(free - 4 * MiB);
  CLIENT_EXPECT(block != 0);
  CLIENT_CHECK(cuMemFree(block));
  CUmemGenericAllocationHandle handle = 0;
  if (!maps_memory()) return 77;
  CLIENT_CHECK(create_memory(&handle, 32 * MiB));
  CLIENT_CHECK(cuMemRelease(handle));
  return 0;
}

int managed_memory() {
  if (use_device(0) != 0) return 1;
  CUdeviceptr first = 0, second = 0;
  CLIENT_CHECK(cuMemAllocManaged(&first, 40 * MiB, CU_MEM_ATTACH_GLOBAL));
  CLIENT_EXPECT(left() == 24 * MiB);
  CLIENT_EXPECT(cuMemAllocManaged(&second, 40 * MiB, CU_MEM_ATTACH_GLOBAL) ==
                CUDA_ERROR_OUT_OF_MEMORY);
  CLIENT_CHECK(cuMemFree(first));
  CLIENT_CHECK(cuMemAllocManaged(&second, 40 * MiB, CU_MEM_ATTACH_GLOBAL));
  CLIENT_CHECK(cuMemFree(second));
  CLIENT_EXPECT(left() == limit);
  return 0;
}

int arrays() {
  if (use_device(0) != 0) return 1;
  CUarray first = nullptr, second = nullptr;
  CUDA_ARRAY_DESCRIPTOR plane{};
  plane.Width = 1024;
  plane.Height = 2560;
  plane.Format = CU_AD_FORMAT_FLOAT;
  plane.NumChannels = 4;
  CLIENT_CHECK(cuArrayCreate(&first, &plane));  // 40 MiB
  CLIENT_EXPECT(left() == 24 * MiB);
  CLIENT_EXPECT(cuArrayCreate(&second, &plane) == CUDA_ERROR_OUT_OF_MEMORY);
  CUDA_ARRAY3D_DESCRIPTOR volume{};
  volume.Width = volume.Height = 256;
  volume.Depth = 64;
  volume.Format = CU_AD_FORMAT_UNSIGNED_INT16;
  volume.NumChannels = 2;
  CLIENT_CHECK(cuArray3DCreate(&second, &volume));  // 16 MiB
  CLIENT_EXPECT(left() == 8 * MiB);
  CLIENT_CHECK(cuArrayDestroy(first));
  CLIENT_CHECK(cuArrayDestroy(second));
  CUmipmappedArray levels = nullptr;
  CLIENT_CHECK(cuMipmappedArrayCreate(&levels, &volume, 3));
  CLIENT_EXPECT(left() == limit - 16 * MiB - 2 * MiB - MiB / 4);
  CLIENT_CHECK(cuMipmappedArrayDestroy(levels));
  CLIENT_EXPECT(left() == limit);
  return 0;
}

int other_pools() {
  if (use_device(0) != 0) return 1;
  int has_pools = 0;
  CLIENT_CHECK(cuDeviceGetAttribute(&has_pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0));
  if (has_pools == 0) return 77;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool pool = nullptr;
  CLIENT_CHECK(cuMemPoolCreate(&pool, &properties));
  CUdeviceptr first = 0, second = 0;
  CLIENT_CHECK(cuMemAllocFromPoolAsync(&first, 40 * MiB, pool, nullptr));
  CLIENT_EXPECT(left() == 24 * MiB);
  CLIENT_EXPECT(cuMemAllocFromPoolAsync(&second, 40 * MiB, pool, nullptr) ==
                CUDA_ERROR_OUT_OF_MEMORY);
  CLIENT_CHECK(cuMemFreeAsync(first, nullptr));
  CLIENT_CHECK(cuMemAllocFromPoolAsync(&second, 40 * MiB, pool, nullptr));
  CLIENT_CHECK(cuMemFree(second));
  CLIENT_EXPECT(left() == limit);
  // A pool is the device's, whichever context was current.
  CUcontext own = nullptr;
  CLIENT_CHECK(create_context(&own));
  CLIENT_CHECK(cuMemAllocFromPoolAsync(&first, 40 * MiB, pool, nullptr));
  CLIENT_CHECK(cuCtxDestroy(own));
  if (use_device(0) != 0) return 1;
  CLIENT_EXPECT(left() == 24 * MiB);
  CLIENT_CHECK(cuMemFreeAsync(first, nullptr));
  CLIENT_EXPECT(left() == limit);
  CLIENT_CHECK(cuMemPoolDestroy(pool));
  return 0;
}

// Memory goes with its context.
int contexts() {
  CLIENT_CHECK(cuInit(0));
  CUdeviceptr at = 0;
  CUcontext own = nullptr, primary = nullptr;
  CLIENT_CHECK(create_context(&own));
  CLIENT_CHECK(cuMemAllocManaged(&at, 40 * MiB, CU_MEM_ATTACH_GLOBAL));
  CLIENT_CHECK(cuCtxDestroy(own));
  for (const bool reset : {true, false}) {
    CLIENT_CHECK(cuDevicePrimaryCtxRetain(&primary, 0));
    CLIENT_CHECK(cuCtxSetCurrent(primary));
    CLIENT_EXPECT(left() == limit);
    CLIENT_CHECK(cuMemAllocManaged(&at, 40 * MiB, CU_MEM_ATTACH_GLOBAL));
    CLIENT_EXPECT(left() == 24 * MiB);
    if (reset) {
      CLIENT_CHECK(cuDevicePrimaryCtxReset(0));
    } else {
      // One who has retained it keeps it.
      CLIENT_CHECK(cuDevicePrimaryCtxRetain(&primary, 0));
      CLIENT_CHECK(cuDevicePrimaryCtxRelease(0));
      CLIENT_EXPECT(left() == 24 * MiB);
      CLIENT_CHECK(cuDevicePrimaryCtxRelease(0));
    }
  }
  CLIENT_CHECK(create_context(&own));
  CLIENT_EXPECT(left() == limit);
  return 0;
}

// A child has none of it, and its parent keeps it.
int forked() {
  if (use_device(0) != 0) return 1;
  CUdeviceptr at = 0;
  CLIENT_CHECK(cuMemAllocManaged(&at, 40 * MiB, CU_MEM_ATTACH_GLOBAL));
  const pid_t child = ::fork();
  if (child == 0) {
    CUdeviceptr other = 0;
    const bool fails = cuMemAllocManaged(&other, MiB, CU_MEM_ATTACH_GLOBAL) != CUDA_SUCCESS &&
                       cuMemFree(at) != CUDA_SUCCESS;
    ::_exit(fails ? 0 : 1);
  }
  int status = -1;
  CLIENT_EXPECT(::waitpid(child, &status, 0) == child && status == 0);
  CLIENT_EXPECT(left() == 24 * MiB);
  CLIENT_CHECK(cuMemFree(at));
  return 0;
}

// With STILLMAP_PRELOAD_ALLOCATOR=driver.
int served_by_the_driver() {
  if (use_device(0) != 0) return 1;
  const CUdeviceptr first = block_of(40 * MiB);
  CLIENT_EXPECT(first != 0 && left() == 24 * MiB);
  CUdeviceptr second = 0;
  CLIENT_EXPECT(cuMemAlloc(&second, 40 * MiB) == CUDA_ERROR_OUT_OF_MEMORY);
  std::size_t pitch = 0;
  CLIENT_CHECK(cuMemAllocPitch(&second, &pitch, 4096, 1024, 4));
  CLIENT_EXPECT(left() == 20 * MiB);
  CLIENT_CHECK(cuMemFree(second));
  CLIENT_CHECK(cuMemFree(first));
  CLIENT_EXPECT(left() == limit);
  return 0;
}

constexpr named_case cases[] = {
    {"own_mappings", own_mappings},
    {"kept_memory", kept_memory},
    {"kept_device", kept_device},
    {"managed_memory", managed_memory},
    {"arrays", arrays},
    {"other_pools", other_pools},
    {"contexts", contexts},
    {"forked", forked},
    {"served_by_the_driver", served_by_the_driver},
};

}  // namespace
}  // namespace client

int main(int, char **words) {
  for (const client::named_case &c : client::cases) {
    if (std::strcmp(c.name, words[1]) == 0) return c.run();
  }
  return 2;
}
