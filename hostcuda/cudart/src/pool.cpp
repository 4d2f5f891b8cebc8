// Memory pools, and allocations ordered by a stream.
#include "hostcuda/cudart/src/runtime.h"

namespace cudart {
namespace {

static_assert(sizeof(cudaMemPoolProps) == sizeof(CUmemPoolProps) &&
              offsetof(cudaMemPoolProps, location) == offsetof(CUmemPoolProps, location) &&
              offsetof(cudaMemPoolProps, reserved) == offsetof(CUmemPoolProps, reserved));
static_assert(sizeof(cudaMemAccessDesc) == sizeof(CUmemAccessDesc) &&
              offsetof(cudaMemAccessDesc, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(static_cast<int>(cudaMemPoolAttrReleaseThreshold) ==
                  CU_MEMPOOL_ATTR_RELEASE_THRESHOLD &&
              static_cast<int>(cudaMemPoolAttrUsedMemHigh) == CU_MEMPOOL_ATTR_USED_MEM_HIGH);

}  // namespace
}  // namespace cudart

using namespace cudart;

CUDART_STREAM_ENTRY(cudaMallocAsync, stream, (void **out, size_t bytes, cudaStream_t stream), {
  CUDART_TRY(bind());
  return from_driver(
      CUDART_DRIVER(cuMemAllocAsync)(reinterpret_cast<CUdeviceptr *>(out), bytes, stream));
})
CUDART_STREAM_ENTRY(cudaMallocFromPoolAsync, stream,
                    (void **out, size_t bytes, cudaMemPool_t pool, cudaStream_t stream), {
                      CUDART_TRY(bind());
                      return from_driver(CUDART_DRIVER(cuMemAllocFromPoolAsync)(
                          reinterpret_cast<CUdeviceptr *>(out), bytes, pool, stream));
                    })
CUDART_STREAM_FORWARD(cudaFreeAsync, stream, (void *at, cudaStream_t stream), cuMemFreeAsync,
                      (address_of(at), stream))

CUDART_FORWARD(cudaMemPoolCreate, (cudaMemPool_t * out, const cudaMemPoolProps *properties),
               cuMemPoolCreate, (out, same<const CUmemPoolProps>(properties)))
CUDART_FORWARD(cudaMemPoolDestroy, (cudaMemPool_t pool), cuMemPoolDestroy, (pool))
CUDART_FORWARD(cudaMemPoolTrimTo, (cudaMemPool_t pool, size_t bytes), cuMemPoolTrimTo,
               (pool, bytes))
CUDART_FORWARD(cudaMemPoolSetAttribute, (cudaMemPool_t pool, cudaMemPoolAttr what, void *value),
               cuMemPoolSetAttribute, (pool, static_cast<CUmemPool_attribute>(what), value))
CUDART_FORWARD(cudaMemPoolGetAttribute, (cudaMemPool_t pool, cudaMemPoolAttr what, void *value),
               cuMemPoolGetAttribute, (pool, static_cast<CUmemPool_attribute>(what), value))
CUDART_FORWARD(cudaMemPoolSetAccess,
               (cudaMemPool_t pool, const cudaMemAccessDesc *access, size_t count),
               cuMemPoolSetAccess, (pool, same<const CUmemAccessDesc>(access), count))
CUDART_FORWARD(cudaMemPoolGetAccess,
               (cudaMemAccessFlags * flags, cudaMemPool_t pool, cudaMemLocation *location),
               cuMemPoolGetAccess,
               (same<CUmemAccess_flags>(flags), pool, same<CUmemLocation>(location)))

CUDART_DEVICE_FORWARD(cudaDeviceGetDefaultMemPool, (cudaMemPool_t * out, int device),
                      cuDeviceGetDefaultMemPool, (out, device))
CUDART_DEVICE_FORWARD(cudaDeviceGetMemPool, (cudaMemPool_t * out, int device), cuDeviceGetMemPool,
                      (out, device))
CUDART_DEVICE_FORWARD(cudaDeviceSetMemPool, (int device, cudaMemPool_t pool), cuDeviceSetMemPool,
                      (device, pool))
#if CUDART_MAJOR >= 13
CUDART_FORWARD(cudaMemGetDefaultMemPool,
               (cudaMemPool_t * out, cudaMemLocation *location, cudaMemAllocationType type),
               cuMemGetDefaultMemPool,
               (out, same<CUmemLocation>(location), static_cast<CUmemAllocationType>(type)))
CUDART_FORWARD(cudaMemGetMemPool,
               (cudaMemPool_t * out, cudaMemLocation *location, cudaMemAllocationType type),
               cuMemGetMemPool,
               (out, same<CUmemLocation>(location), static_cast<CUmemAllocationType>(type)))
CUDART_FORWARD(cudaMemSetMemPool,
               (cudaMemLocation * location, cudaMemAllocationType type, cudaMemPool_t pool),
               cuMemSetMemPool,
               (same<CUmemLocation>(location), static_cast<CUmemAllocationType>(type), pool))
#endif

// ---- Between processes

CUDART_FORWARD(cudaMemPoolExportToShareableHandle,
               (void *handle, cudaMemPool_t pool, cudaMemAllocationHandleType type, unsigned flags),
               cuMemPoolExportToShareableHandle,
               (handle, pool, static_cast<CUmemAllocationHandleType>(type), flags))
CUDART_FORWARD(cudaMemPoolImportFromShareableHandle,
               (cudaMemPool_t * out, void *handle, cudaMemAllocationHandleType type,
                unsigned flags),
               cuMemPoolImportFromShareableHandle,
               (out, handle, static_cast<CUmemAllocationHandleType>(type), flags))
CUDART_FORWARD(cudaMemPoolExportPointer, (cudaMemPoolPtrExportData * out, void *at),
               cuMemPoolExportPointer, (same<CUmemPoolPtrExportData>(out), address_of(at)))
CUDART_ENTRY(cudaMemPoolImportPointer,
             (void **out, cudaMemPool_t pool, cudaMemPoolPtrExportData *data), {
               CUDART_TRY(bind());
               return from_driver(CUDART_DRIVER(cuMemPoolImportPointer)(
                   reinterpret_cast<CUdeviceptr *>(out), pool, same<CUmemPoolPtrExportData>(data)));
             })
