// Hints about managed memory, as far as the driver takes them.
#include "hostcuda/cudart/src/runtime.h"

// The driver's functions took a device before CUDA 13, and take a location since. It exports both, the
// second as _v2, but the headers of CUDA 13 declare the second only and those of 12.0 the first.

using namespace cudart;

#if CUDART_MAJOR < 13
CUDART_STREAM_ENTRY(cudaMemPrefetchAsync, stream,
                    (const void *at, size_t bytes, int device, cudaStream_t stream), {
                      return driver_call<CUdeviceptr, size_t, CUdevice, CUstream>{
                          "cuMemPrefetchAsync"}(address_of(at), bytes, device, stream);
                    })
CUDART_ENTRY(cudaMemAdvise, (const void *at, size_t bytes, cudaMemoryAdvise advice, int device), {
  return driver_call<CUdeviceptr, size_t, cudaMemoryAdvise, CUdevice>{"cuMemAdvise"}(
      address_of(at), bytes, advice, device);
})
#endif

#if CUDART_VERSION >= 12020
#if CUDART_MAJOR < 13
#define CUDART_LOCATION_NAME(name) name##_v2
#else
#define CUDART_LOCATION_NAME(name) name
#endif
// One more level, so that the name is expanded before it gets its suffix.
#define CUDART_LOCATION_STREAM_ENTRY(name, ...) CUDART_STREAM_ENTRY(name, __VA_ARGS__)
#define CUDART_LOCATION_ENTRY(name, ...) CUDART_ENTRY(name, __VA_ARGS__)

CUDART_LOCATION_STREAM_ENTRY(
    CUDART_LOCATION_NAME(cudaMemPrefetchAsync), stream,
    (const void *at, size_t bytes, cudaMemLocation location, unsigned flags, cudaStream_t stream), {
      return driver_call<CUdeviceptr, size_t, cudaMemLocation, unsigned, CUstream>{
          "cuMemPrefetchAsync_v2"}(address_of(at), bytes, location, flags, stream);
    })
CUDART_LOCATION_ENTRY(CUDART_LOCATION_NAME(cudaMemAdvise),
                      (const void *at, size_t bytes, cudaMemoryAdvise advice,
                       cudaMemLocation location),
                      {
                        return driver_call<CUdeviceptr, size_t, cudaMemoryAdvise, cudaMemLocation>{
                            "cuMemAdvise_v2"}(address_of(at), bytes, advice, location);
                      })
#endif

CUDART_FORWARD(cudaMemRangeGetAttribute,
               (void *data, size_t data_size, cudaMemRangeAttribute attribute, const void *at,
                size_t bytes),
               cuMemRangeGetAttribute,
               (data, data_size, static_cast<CUmem_range_attribute>(attribute), address_of(at),
                bytes))
CUDART_FORWARD(cudaMemRangeGetAttributes,
               (void **data, size_t *data_sizes, cudaMemRangeAttribute *attributes, size_t count,
                const void *at, size_t bytes),
               cuMemRangeGetAttributes,
               (data, data_sizes, reinterpret_cast<CUmem_range_attribute *>(attributes), count,
                address_of(at), bytes))
