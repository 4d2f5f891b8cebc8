// Variables of device code, by the address of their host variable.
#include "hostcuda/cudart/src/registration.h"

namespace cudart {
namespace {

cudaError_t part_of_symbol(const void *symbol, size_t offset, size_t bytes, CUdeviceptr *out) {
  device_variable v;
  CUDART_TRY(find_variable(symbol, &v));
  if (offset > v.bytes || bytes > v.bytes - offset) return cudaErrorInvalidValue;
  *out = v.at + offset;
  return cudaSuccess;
}

bool leads_from(cudaMemcpyKind kind, cudaMemcpyKind host) {
  return kind == host || kind == cudaMemcpyDeviceToDevice || kind == cudaMemcpyDefault;
}

cudaError_t copy_to_symbol(const void *symbol, const void *from, size_t bytes, size_t offset,
                           cudaMemcpyKind kind, cudaStream_t stream, bool wait) {
  if (!leads_from(kind, cudaMemcpyHostToDevice)) return cudaErrorInvalidMemcpyDirection;
  CUdeviceptr to = 0;
  CUDART_TRY(part_of_symbol(symbol, offset, bytes, &to));
  return bytes == 0 ? cudaSuccess : copy_bytes(to, address_of(from), bytes, stream, wait);
}

cudaError_t copy_from_symbol(void *to, const void *symbol, size_t bytes, size_t offset,
                             cudaMemcpyKind kind, cudaStream_t stream, bool wait) {
  if (!leads_from(kind, cudaMemcpyDeviceToHost)) return cudaErrorInvalidMemcpyDirection;
  CUdeviceptr from = 0;
  CUDART_TRY(part_of_symbol(symbol, offset, bytes, &from));
  return bytes == 0 ? cudaSuccess : copy_bytes(address_of(to), from, bytes, stream, wait);
}

}  // namespace
}  // namespace cudart

using namespace cudart;

CUDART_ENTRY(cudaGetSymbolAddress, (void **out, const void *symbol), {
  if (out == nullptr) return cudaErrorInvalidValue;
  device_variable v;
  CUDART_TRY(find_variable(symbol, &v));
  *out = reinterpret_cast<void *>(v.at);
  return cudaSuccess;
})
CUDART_ENTRY(cudaGetSymbolSize, (size_t * out, const void *symbol), {
  if (out == nullptr) return cudaErrorInvalidValue;
  device_variable v;
  CUDART_TRY(find_variable(symbol, &v));
  *out = v.bytes;
  return cudaSuccess;
})

CUDART_SYNC_ENTRY(cudaMemcpyToSymbol,
                  (const void *symbol, const void *from, size_t bytes, size_t offset,
                   cudaMemcpyKind kind),
                  { return copy_to_symbol(symbol, from, bytes, offset, kind, stream_, true); })
CUDART_SYNC_ENTRY(cudaMemcpyFromSymbol,
                  (void *to, const void *symbol, size_t bytes, size_t offset, cudaMemcpyKind kind),
                  { return copy_from_symbol(to, symbol, bytes, offset, kind, stream_, true); })
CUDART_STREAM_ENTRY(cudaMemcpyToSymbolAsync, stream,
                    (const void *symbol, const void *from, size_t bytes, size_t offset,
                     cudaMemcpyKind kind, cudaStream_t stream),
                    { return copy_to_symbol(symbol, from, bytes, offset, kind, stream, false); })
CUDART_STREAM_ENTRY(cudaMemcpyFromSymbolAsync, stream,
                    (void *to, const void *symbol, size_t bytes, size_t offset, cudaMemcpyKind kind,
                     cudaStream_t stream),
                    { return copy_from_symbol(to, symbol, bytes, offset, kind, stream, false); })
