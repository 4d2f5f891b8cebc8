// For nvcc: Thrust with kernels, cuda::buffer, and Stillmap's views as arguments of kernels.
// tools/check/cccl_dialects.sh compiles it with each CCCL and runs it on hostcuda, which has no kernels to
// run: it shows that these programs compile, and what they allocate and free.
#include <cuda/std/span>

#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/sort.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "stillmap/allocators/cccl/memory_resource.h"
#include "stillmap/allocators/cccl/thrust_allocator.h"
#include "stillmap/vmm/device_vector.h"

#if CCCL_VERSION >= 3002000
#include <cuda/buffer>
#endif

__global__ void scale(stillmap::device_span<float> values, float factor) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < values.size()) values[i] *= factor;
}
__global__ void increment(cuda::std::span<float> values) {
  for (float &value : values) value += 1;
}

int fail(const char *what) {
  std::printf("failed: %s\n", what);
  return 1;
}

int main() {
  auto device = stillmap::device::open(0);
  if (!device) return fail(device.error().message().c_str());
  auto made = stillmap::caching_allocator::create(*device);
  if (!made) return fail(made.error().message().c_str());
  const std::shared_ptr<stillmap::caching_allocator> heap = std::move(*made);
  auto own = stillmap::stream::create(*device);
  if (!own) return fail(own.error().message().c_str());

  using allocator = stillmap::cccl::thrust_allocator<float>;
  {
    thrust::device_vector<float, allocator> v(1000, 1.0f, allocator(heap));
    v.resize(100'000);
    const auto before = heap->stats().total.allocations;
    thrust::sort(thrust::cuda::par(allocator(heap)), v.begin(), v.end());
    if (heap->stats().total.allocations == before) return fail("sort took its memory elsewhere");
    v.push_back(3.f);
    auto w = v;
    w.swap(v);
    if (!heap->owns(thrust::raw_pointer_cast(w.data())) || w.size() != 100'001) return fail("copy");
    scale<<<1, 32>>>({thrust::raw_pointer_cast(v.data()), v.size()}, 2.f);
  }
#if CCCL_VERSION >= 3002000
  {
    const cuda::stream_ref s(reinterpret_cast<cudaStream_t>(own->get()));
    stillmap::cccl::memory_resource resource(heap);
    auto b = cuda::make_buffer<float>(s, resource, 1000, 1.f);
    b = cuda::make_buffer<float, cuda::mr::device_accessible>(s, b.memory_resource(), 64'000, 2.f);
    if (!heap->owns(b.data()) || b.size() != 64'000) return fail("cuda::buffer");
  }
#endif
  auto vector = stillmap::device_vector<float>::create(*device);
  if (!vector || !vector->resize(64)) return fail("device_vector");
  scale<<<1, 64>>>(vector->span(), 2.f);
  increment<<<1, 1>>>(cuda::std::span<float>(*vector));
  if (cudaDeviceSynchronize() != cudaSuccess) return fail("cudaDeviceSynchronize");
  if (heap->stats().total.live != 0) return fail("blocks are left");
  if (stillmap::background_error_count() != 0) return fail("errors in the background");
  std::printf("CCCL %d: ok\n", CCCL_VERSION);
}
