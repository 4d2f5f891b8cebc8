// Device and managed memory.
#include <algorithm>

#include "hostcuda/cudart/src/runtime.h"

namespace cudart {
namespace {

// An allocation of no bytes succeeds with a null pointer. cudaFree() takes it.
cudaError_t allocate_device(void **out, size_t bytes) {
  if (out == nullptr) return cudaErrorInvalidValue;
  CUDART_TRY(bind());
  *out = nullptr;
  if (bytes == 0) return cudaSuccess;
  CUdeviceptr at = 0;
  CUDART_TRY(CUDART_DRIVER(cuMemAlloc)(&at, bytes));
  *out = reinterpret_cast<void *>(at);
  return cudaSuccess;
}

cudaError_t allocate_pitched(void **out, size_t *pitch, size_t width, size_t rows) {
  if (out == nullptr || pitch == nullptr) return cudaErrorInvalidValue;
  CUDART_TRY(bind());
  *out = nullptr;
  *pitch = 0;
  if (width == 0 || rows == 0) return cudaSuccess;
  CUdeviceptr at = 0;
  CUDART_TRY(CUDART_DRIVER(cuMemAllocPitch)(&at, pitch, width, rows, 4));
  *out = reinterpret_cast<void *>(at);
  return cudaSuccess;
}

}  // namespace
}  // namespace cudart

using namespace cudart;

CUDART_ENTRY(cudaMalloc, (void **out, size_t bytes), { return allocate_device(out, bytes); })

CUDART_ENTRY(cudaFree, (void *at), {
  CUDART_TRY(bind());
  if (at == nullptr) return cudaSuccess;
  return from_driver(CUDART_DRIVER(cuMemFree)(address_of(at)));
})

CUDART_ENTRY(cudaMallocManaged, (void **out, size_t bytes, unsigned flags), {
  if (out == nullptr || bytes == 0) return cudaErrorInvalidValue;
  if (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost) return cudaErrorInvalidValue;
  CUDART_TRY(bind());
  CUdeviceptr at = 0;
  CUDART_TRY(CUDART_DRIVER(cuMemAllocManaged)(&at, bytes, flags));
  *out = reinterpret_cast<void *>(at);
  return cudaSuccess;
})

CUDART_ENTRY(cudaMallocPitch, (void **out, size_t *pitch, size_t width, size_t rows),
             { return allocate_pitched(out, pitch, width, rows); })

CUDART_ENTRY(cudaMalloc3D, (cudaPitchedPtr * out, cudaExtent extent), {
  if (out == nullptr) return cudaErrorInvalidValue;
  if (extent.depth != 0 && extent.height > SIZE_MAX / extent.depth)
    return cudaErrorMemoryAllocation;
  CUDART_TRY(allocate_pitched(&out->ptr, &out->pitch, extent.width, extent.height * extent.depth));
  out->xsize = extent.width;
  out->ysize = extent.height;
  return cudaSuccess;
})

CUDART_FORWARD(cudaMemGetInfo, (size_t * unused_bytes, size_t *total), cuMemGetInfo,
               (unused_bytes, total))

CUDART_STREAM_FORWARD(cudaStreamAttachMemAsync, stream,
                      (cudaStream_t stream, void *at, size_t bytes, unsigned flags),
                      cuStreamAttachMemAsync, (stream, address_of(at), bytes, flags))
