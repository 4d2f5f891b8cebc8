// The default and the current memory pool of a device.
#include <mutex>

#include "hostcuda/src/device.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/machine.h"
#include "hostcuda/src/memory/pool.h"

namespace hostcuda {
namespace {

// Checks a device argument of a pool function.
CUresult check_device(CUdevice device) {
  if (!current_settings().machine.has_pools) return CUDA_ERROR_NOT_SUPPORTED;
  return valid_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult default_pool(CUdevice device, CUmemoryPool *out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = check_device(device); r != CUDA_SUCCESS) return r;
  exclusive lock(the_memory().mutex);
  *out = handle_of_pool(standard_pool_locked(device));
  return CUDA_SUCCESS;
}

CUresult current_pool(CUdevice device, CUmemoryPool *out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = check_device(device); r != CUDA_SUCCESS) return r;
  exclusive lock(the_memory().mutex);
  memory_pool *p = pools().current[device];
  *out = handle_of_pool(p != nullptr ? p : standard_pool_locked(device));
  return CUDA_SUCCESS;
}

CUresult set_current_pool(CUdevice device, CUmemoryPool handle) {
  if (CUresult r = check_device(device); r != CUDA_SUCCESS) return r;
  exclusive lock(the_memory().mutex);
  memory_pool *p = find_pool_locked(handle);
  if (p == nullptr || p->imported || p->a.location != device) return CUDA_ERROR_INVALID_VALUE;
  pools().current[device] = p;
  return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 13000
// Host and managed pools are not provided.
CUresult check_location(const CUmemLocation *location, CUmemAllocationType type) {
  if (location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_ALLOCATION_TYPE_PINNED && type != CU_MEM_ALLOCATION_TYPE_MANAGED)
    return CUDA_ERROR_INVALID_VALUE;
  return type == CU_MEM_ALLOCATION_TYPE_PINNED && location->type == CU_MEM_LOCATION_TYPE_DEVICE
             ? CUDA_SUCCESS
             : CUDA_ERROR_NOT_SUPPORTED;
}
#endif

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuDeviceGetDefaultMemPool, 11020, plain, 0, (CUmemoryPool * out, CUdevice device),
               { return default_pool(device, out); })

HOSTCUDA_ENTRY(cuDeviceGetMemPool, 11020, plain, 0, (CUmemoryPool * out, CUdevice device),
               { return current_pool(device, out); })

HOSTCUDA_ENTRY(cuDeviceSetMemPool, 11020, plain, 0, (CUdevice device, CUmemoryPool handle),
               { return set_current_pool(device, handle); })

#if CUDA_VERSION >= 13000
HOSTCUDA_ENTRY(cuMemGetDefaultMemPool, 13000, needs_pools, 0,
               (CUmemoryPool * out, CUmemLocation *location, CUmemAllocationType type), {
                 const CUresult r = check_location(location, type);
                 return r != CUDA_SUCCESS ? r : default_pool(location->id, out);
               })
HOSTCUDA_ENTRY(cuMemGetMemPool, 13000, needs_pools, 0,
               (CUmemoryPool * out, CUmemLocation *location, CUmemAllocationType type), {
                 const CUresult r = check_location(location, type);
                 return r != CUDA_SUCCESS ? r : current_pool(location->id, out);
               })
HOSTCUDA_ENTRY(cuMemSetMemPool, 13000, needs_pools, 0,
               (CUmemLocation * location, CUmemAllocationType type, CUmemoryPool pool), {
                 const CUresult r = check_location(location, type);
                 return r != CUDA_SUCCESS ? r : set_current_pool(location->id, pool);
               })
#else
HOSTCUDA_NOT_PROVIDED(cuMemGetDefaultMemPool, 13000)
HOSTCUDA_NOT_PROVIDED(cuMemGetMemPool, 13000)
HOSTCUDA_NOT_PROVIDED(cuMemSetMemPool, 13000)
#endif
