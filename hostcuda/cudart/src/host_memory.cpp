// Pinned host memory.
#include "hostcuda/cudart/src/runtime.h"

namespace cudart {
namespace {

cudaError_t allocate_host(void **out, size_t bytes, unsigned flags) {
  if (out == nullptr) return cudaErrorInvalidValue;
  CUDART_TRY(bind());
  *out = nullptr;
  if (bytes == 0) return cudaSuccess;
  return from_driver(CUDART_DRIVER(cuMemHostAlloc)(out, bytes, flags));
}

static_assert(cudaHostAllocPortable == CU_MEMHOSTALLOC_PORTABLE &&
              cudaHostAllocMapped == CU_MEMHOSTALLOC_DEVICEMAP &&
              cudaHostAllocWriteCombined == CU_MEMHOSTALLOC_WRITECOMBINED &&
              cudaHostRegisterReadOnly == CU_MEMHOSTREGISTER_READ_ONLY);

}  // namespace
}  // namespace cudart

using namespace cudart;

CUDART_ENTRY(cudaMallocHost, (void **out, size_t bytes),
             { return allocate_host(out, bytes, cudaHostAllocDefault); })
CUDART_ENTRY(cudaHostAlloc, (void **out, size_t bytes, unsigned flags),
             { return allocate_host(out, bytes, flags); })

CUDART_ENTRY(cudaFreeHost, (void *at), {
  CUDART_TRY(bind());
  if (at == nullptr) return cudaSuccess;
  return from_driver(CUDART_DRIVER(cuMemFreeHost)(at));
})

CUDART_FORWARD(cudaHostRegister, (void *at, size_t bytes, unsigned flags), cuMemHostRegister,
               (at, bytes, flags))
CUDART_FORWARD(cudaHostUnregister, (void *at), cuMemHostUnregister, (at))
CUDART_FORWARD(cudaHostGetFlags, (unsigned *flags, void *at), cuMemHostGetFlags, (flags, at))

CUDART_ENTRY(cudaHostGetDevicePointer, (void **out, void *host, unsigned flags), {
  if (out == nullptr) return cudaErrorInvalidValue;
  CUDART_TRY(bind());
  CUdeviceptr at = 0;
  CUDART_TRY(CUDART_DRIVER(cuMemHostGetDevicePointer)(&at, host, flags));
  *out = reinterpret_cast<void *>(at);
  return cudaSuccess;
})
