// PyTorch's own CUDA caching allocator behind the C interface of torch_peer.h. Not part of the
// project's build: tools/torch_peer/build compiles it against an installed PyTorch.
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <exception>
#include <string>

#include "bench/replay/baselines/torch_peer.h"

#ifndef STILLMAP_TORCH_VERSION
#define STILLMAP_TORCH_VERSION "unknown"
#endif

// Exported by libc10_cuda, declared in no header that is installed. libtorch_cuda, which is not
// loaded here, sets it.
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*)(DeviceIndex));
}

namespace {

namespace peer = c10::cuda::CUDACachingAllocator;

c10::DeviceIndex the_device = 0;
std::string what_failed;
int64_t retries_before = 0;

int remember(const std::exception &e, int code) {
  what_failed = e.what();
  what_failed.resize(std::min(what_failed.size(), what_failed.find('\n')));
  return code;
}

// No exception of C++ leaves the library.
template <class Body>
int guarded(Body &&body) {
  try {
    body();
    return STILLMAP_TORCH_PEER_OK;
  } catch (const c10::OutOfMemoryError &e) {
    return remember(e, STILLMAP_TORCH_PEER_OUT_OF_MEMORY);
  } catch (const std::exception &e) {
    return remember(e, STILLMAP_TORCH_PEER_FAILED);
  }
}

int open_device(int device, const char *settings) {
  return guarded([&] {
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
    the_device = static_cast<c10::DeviceIndex>(device);
    peer::init(c10::cuda::device_count());
    peer::emptyCache();  // segments of other settings
    peer::setAllocatorSettings(settings);
    peer::resetPeakStats(the_device);
    retries_before = peer::getDeviceStats(the_device).num_alloc_retries;
  });
}

int close_device() {
  return guarded([] { peer::emptyCache(); });
}

int allocate(void **out, size_t bytes, void *stream) {
  return guarded(
      [&] { *out = peer::raw_alloc_with_stream(bytes, static_cast<cudaStream_t>(stream)); });
}

int free_block(void *at) {
  return guarded([&] { peer::raw_delete(at); });
}

int record_stream(void *at, void *stream) {
  return guarded([&] {
    // A block is known by the deleter beside its address; this one must not run.
    c10::DataPtr block(at, at, peer::get()->raw_deleter(),
                       c10::Device(c10::DeviceType::CUDA, the_device));
    peer::recordStream(
        block, c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream), the_device));
    block.release_context();
  });
}

int stats(stillmap_torch_peer_stats *out) {
  return guarded([&] {
    const auto of = peer::getDeviceStats(the_device);
    const auto &reserved = of.reserved_bytes[0];  // of small and large requests together
    out->reserved_bytes = static_cast<uint64_t>(reserved.current);
    out->peak_reserved_bytes = static_cast<uint64_t>(reserved.peak);
    out->retries = static_cast<uint64_t>(of.num_alloc_retries - retries_before);
  });
}

const char *last_error() {
  return what_failed.c_str();
}

constexpr stillmap_torch_peer table = {STILLMAP_TORCH_PEER_VERSION,
                                       STILLMAP_TORCH_VERSION,
                                       open_device,
                                       close_device,
                                       allocate,
                                       free_block,
                                       record_stream,
                                       stats,
                                       last_error};

}  // namespace

extern "C" __attribute__((visibility("default"))) const stillmap_torch_peer *
stillmap_torch_peer_table() {
  return &table;
}
