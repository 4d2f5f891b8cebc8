// Copies and memsets of bytes.
#include "hostcuda/cudart/src/runtime.h"

namespace cudart {
namespace {

// Addresses are unified, so the driver finds out where each side is. The direction is checked only.
bool valid_direction(cudaMemcpyKind kind) {
  return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault;
}

cudaError_t copy_linear(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                        cudaStream_t stream, bool wait) {
  if (!valid_direction(kind)) return cudaErrorInvalidMemcpyDirection;
  CUDART_TRY(bind());
  if (bytes == 0) return cudaSuccess;
  if (to == nullptr || from == nullptr) return cudaErrorInvalidValue;
  return copy_bytes(address_of(to), address_of(from), bytes, stream, wait);
}

cudaError_t copy_peer(void *to, int to_device, const void *from, int from_device, size_t bytes,
                      cudaStream_t stream, bool wait) {
  CUDART_TRY(bind());
  CUcontext to_context = nullptr;
  CUcontext from_context = nullptr;
  CUDART_TRY(primary_context(to_device, &to_context));
  CUDART_TRY(primary_context(from_device, &from_context));
  if (bytes == 0) return cudaSuccess;
  return from_driver(wait ? CUDART_DRIVER(cuMemcpyPeer)(address_of(to), to_context,
                                                        address_of(from), from_context, bytes)
                          : CUDART_DRIVER(cuMemcpyPeerAsync)(address_of(to), to_context,
                                                             address_of(from), from_context, bytes,
                                                             stream));
}

}  // namespace

// The driver has the synchronous function in two variants, without a stream parameter.
cudaError_t copy_bytes(CUdeviceptr to, CUdeviceptr from, size_t bytes, cudaStream_t stream,
                       bool wait) {
  if (!wait) return from_driver(CUDART_DRIVER(cuMemcpyAsync)(to, from, bytes, stream));
  return from_driver(stream == nullptr ? CUDART_DRIVER(cuMemcpy)(to, from, bytes)
                                       : CUDART_DRIVER_PTDS(cuMemcpy)(to, from, bytes));
}

}  // namespace cudart

using namespace cudart;

CUDART_SYNC_ENTRY(cudaMemcpy, (void *to, const void *from, size_t bytes, cudaMemcpyKind kind),
                  { return copy_linear(to, from, bytes, kind, stream_, true); })
CUDART_STREAM_ENTRY(cudaMemcpyAsync, stream,
                    (void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                     cudaStream_t stream),
                    { return copy_linear(to, from, bytes, kind, stream, false); })

CUDART_ENTRY(cudaMemcpyPeer,
             (void *to, int to_device, const void *from, int from_device, size_t bytes),
             { return copy_peer(to, to_device, from, from_device, bytes, nullptr, true); })
CUDART_ENTRY(cudaMemcpyPeerAsync,
             (void *to, int to_device, const void *from, int from_device, size_t bytes,
              cudaStream_t stream),
             { return copy_peer(to, to_device, from, from_device, bytes, stream, false); })
