// The three interfaces of cuda::mr under one name each, for tests that say the same of all of them.
#pragma once

#ifdef STILLMAP_HAVE_CCCL

#include <cstddef>
#include <cstdint>

#include "stillmap/allocators/cccl/memory_resource.h"

namespace stillmap::testing {

using cuda::mr::device_accessible;
#if CCCL_VERSION >= 3001000
using async_ref = cuda::mr::resource_ref<device_accessible>;
using sync_ref = cuda::mr::synchronous_resource_ref<device_accessible>;
#else
using async_ref = cuda::mr::async_resource_ref<device_accessible>;
using sync_ref = cuda::mr::resource_ref<device_accessible>;
#endif

inline cuda::stream_ref cuda_stream(stream_ref s) {
  return cuda::stream_ref(reinterpret_cast<cudaStream_t>(s.get()));
}

template <class Resource>
void *allocate(Resource &r, stream_ref s, std::size_t bytes, std::size_t alignment = 256) {
#if CCCL_VERSION >= 3001000
  return r.allocate(cuda_stream(s), bytes, alignment);
#else
  return r.allocate_async(bytes, alignment, cuda_stream(s));
#endif
}
template <class Resource>
void deallocate(Resource &r, stream_ref s, void *at, std::size_t bytes,
                std::size_t alignment = 256) {
#if CCCL_VERSION >= 3001000
  r.deallocate(cuda_stream(s), at, bytes, alignment);
#else
  r.deallocate_async(at, bytes, alignment, cuda_stream(s));
#endif
}
template <class Resource>
void *allocate_sync(Resource &r, std::size_t bytes, std::size_t alignment = 256) {
#if CCCL_VERSION >= 3001000
  return r.allocate_sync(bytes, alignment);
#else
  return r.allocate(bytes, alignment);
#endif
}
template <class Resource>
void deallocate_sync(Resource &r, void *at, std::size_t bytes, std::size_t alignment = 256) {
#if CCCL_VERSION >= 3001000
  r.deallocate_sync(at, bytes, alignment);
#else
  r.deallocate(at, bytes, alignment);
#endif
}

}  // namespace stillmap::testing

#endif
