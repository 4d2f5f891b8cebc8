// The one-dimensional copy functions of the driver API. Each creates a copy_request.
#include "hostcuda/src/context.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/memory/copy.h"
#include "hostcuda/src/memory/memory_state.h"

namespace hostcuda {
namespace {

CUresult contiguous(const char *what, const copy_side &to, const copy_side &from, std::size_t bytes,
                    CUstream stream, bool wait) {
  copy_request r;
  r.what = what;
  r.to = to;
  r.from = from;
  r.width = bytes;
  return copy(r, stream, wait);
}

CUresult linear(const char *what, side to_kind, CUdeviceptr to, side from_kind, CUdeviceptr from,
                std::size_t bytes, CUstream stream, bool wait) {
  const CUdevice device = current_context()->device;
  return contiguous(what, {to_kind, to, bytes, device}, {from_kind, from, bytes, device}, bytes,
                    stream, wait);
}

CUresult peer(const char *what, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
              CUcontext from_context, std::size_t bytes, CUstream stream, bool wait) {
  const context *to_ctx = find_context(to_context);
  const context *from_ctx = find_context(from_context);
  if (to_ctx == nullptr || from_ctx == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return contiguous(what, {side::device, to, bytes, to_ctx->device},
                    {side::device, from, bytes, from_ctx->device}, bytes, stream, wait);
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;

// The synchronous and the asynchronous copy in one direction.
#define HOSTCUDA_COPIES(direction, version, since, to_type, to_kind, from_type, from_kind)        \
  HOSTCUDA_SYNC_ENTRY(cuMemcpy##direction##version, since, needs_context, bytes,                  \
                      (to_type to, from_type from, size_t bytes), (to, from, bytes), {            \
                        return linear("cuMemcpy" #direction, to_kind, address_of(to), from_kind,  \
                                      address_of(from), bytes, stream_, true);                    \
                      })                                                                          \
  HOSTCUDA_STREAM_ENTRY(cuMemcpy##direction##Async##version, since, needs_context, bytes, stream, \
                        (to_type to, from_type from, size_t bytes, CUstream stream),              \
                        (to, from, bytes, stream), {                                              \
                          return linear("cuMemcpy" #direction "Async", to_kind, address_of(to),   \
                                        from_kind, address_of(from), bytes, stream, false);       \
                        })

HOSTCUDA_COPIES(, , 4000, CUdeviceptr, side::unified, CUdeviceptr, side::unified)
HOSTCUDA_COPIES(HtoD, _v2, 3020, CUdeviceptr, side::device, const void *, side::host)
HOSTCUDA_COPIES(DtoH, _v2, 3020, void *, side::host, CUdeviceptr, side::device)
HOSTCUDA_COPIES(DtoD, _v2, 3020, CUdeviceptr, side::device, CUdeviceptr, side::device)

HOSTCUDA_SYNC_ENTRY(
    cuMemcpyPeer, 4000, needs_context, bytes,
    (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),
    (to, to_context, from, from_context, bytes),
    { return peer("cuMemcpyPeer", to, to_context, from, from_context, bytes, stream_, true); })

HOSTCUDA_STREAM_ENTRY(cuMemcpyPeerAsync, 4000, needs_context, bytes, stream,
                      (CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                       CUcontext from_context, size_t bytes, CUstream stream),
                      (to, to_context, from, from_context, bytes, stream), {
                        return peer("cuMemcpyPeerAsync", to, to_context, from, from_context, bytes,
                                    stream, false);
                      })
