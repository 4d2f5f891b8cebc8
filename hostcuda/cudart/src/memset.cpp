// Memory set to a byte.
#include "hostcuda/cudart/src/runtime.h"

namespace cudart {
namespace {

// A memset of device memory does not wait, whatever the function is called; cudaMemset() only uses
// the default stream. The driver's functions do the same.
CUresult set_now(CUdeviceptr at, unsigned char byte, size_t bytes, cudaStream_t stream) {
  return stream == nullptr ? CUDART_DRIVER(cuMemsetD8)(at, byte, bytes)
                           : CUDART_DRIVER_PTDS(cuMemsetD8)(at, byte, bytes);
}

CUresult set_rows_now(CUdeviceptr at, size_t pitch, unsigned char byte, size_t width, size_t rows,
                      cudaStream_t stream) {
  return stream == nullptr ? CUDART_DRIVER(cuMemsetD2D8)(at, pitch, byte, width, rows)
                           : CUDART_DRIVER_PTDS(cuMemsetD2D8)(at, pitch, byte, width, rows);
}

cudaError_t set_linear(void *at, int value, size_t bytes, cudaStream_t stream, bool wait) {
  CUDART_TRY(bind());
  if (bytes == 0) return cudaSuccess;
  const auto byte = static_cast<unsigned char>(value);
  return from_driver(wait ? set_now(address_of(at), byte, bytes, stream)
                          : CUDART_DRIVER(cuMemsetD8Async)(address_of(at), byte, bytes, stream));
}

cudaError_t set_rectangle(void *at, size_t pitch, int value, size_t width, size_t rows,
                          cudaStream_t stream, bool wait) {
  if (rows > 1 && pitch < width) return cudaErrorInvalidPitchValue;
  CUDART_TRY(bind());
  if (width == 0 || rows == 0) return cudaSuccess;
  const auto byte = static_cast<unsigned char>(value);
  return from_driver(
      wait ? set_rows_now(address_of(at), pitch, byte, width, rows, stream)
           : CUDART_DRIVER(cuMemsetD2D8Async)(address_of(at), pitch, byte, width, rows, stream));
}

cudaError_t set_box(const cudaPitchedPtr &p, int value, const cudaExtent &extent,
                    cudaStream_t stream, bool wait) {
  if (extent.depth > 1 && p.ysize < extent.height) return cudaErrorInvalidValue;
  for (size_t z = 0; z < extent.depth; ++z)
    CUDART_TRY(set_rectangle(static_cast<char *>(p.ptr) + z * p.pitch * p.ysize, p.pitch, value,
                             extent.width, extent.height, stream, wait));
  return cudaSuccess;
}

}  // namespace
}  // namespace cudart

using namespace cudart;

CUDART_SYNC_ENTRY(cudaMemset, (void *at, int value, size_t bytes),
                  { return set_linear(at, value, bytes, stream_, true); })
CUDART_STREAM_ENTRY(cudaMemsetAsync, stream,
                    (void *at, int value, size_t bytes, cudaStream_t stream),
                    { return set_linear(at, value, bytes, stream, false); })
CUDART_SYNC_ENTRY(cudaMemset2D, (void *at, size_t pitch, int value, size_t width, size_t rows),
                  { return set_rectangle(at, pitch, value, width, rows, stream_, true); })
CUDART_STREAM_ENTRY(cudaMemset2DAsync, stream,
                    (void *at, size_t pitch, int value, size_t width, size_t rows,
                     cudaStream_t stream),
                    { return set_rectangle(at, pitch, value, width, rows, stream, false); })
CUDART_SYNC_ENTRY(cudaMemset3D, (cudaPitchedPtr at, int value, cudaExtent extent),
                  { return set_box(at, value, extent, stream_, true); })
CUDART_STREAM_ENTRY(cudaMemset3DAsync, stream,
                    (cudaPitchedPtr at, int value, cudaExtent extent, cudaStream_t stream),
                    { return set_box(at, value, extent, stream, false); })
