// Copies in two and three dimensions.
#include <cstring>

#include "hostcuda/src/context.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/memory/array.h"
#include "hostcuda/src/memory/copy.h"
#include "hostcuda/src/memory/memory_state.h"

namespace hostcuda {
namespace {

// Either side of CUDA_MEMCPY3D.
struct box_side {
  CUmemorytype type;
  const void *host;
  CUdeviceptr device;
  CUarray array;
  std::size_t x, y, z, lod, pitch, height;
};

bool describe_box(const box_side &b, const CUDA_MEMCPY3D &c, CUdevice device, copy_side *out) {
  if (b.lod != 0) return false;
  if (b.type == CU_MEMORYTYPE_ARRAY)
    return array_side({b.array, b.x, b.y, b.z}, c.WidthInBytes, c.Height, c.Depth, device, out) ==
           CUDA_SUCCESS;
  // A pitch or height of 0 means contiguous rows or slices.
  const std::size_t pitch = b.pitch != 0 ? b.pitch : c.WidthInBytes;
  const std::size_t height = b.height != 0 ? b.height : c.Height;
  if (pitch < c.WidthInBytes + b.x) return false;
  if (c.Depth > 1 && height < c.Height + b.y) return false;
  switch (b.type) {
    case CU_MEMORYTYPE_HOST:
      *out = {side::host, address_of(b.host), pitch, device, pitch * height};
      break;
    case CU_MEMORYTYPE_DEVICE:
      *out = {side::device, b.device, pitch, device, pitch * height};
      break;
    case CU_MEMORYTYPE_UNIFIED:
      *out = {side::unified, b.device, pitch, device, pitch * height};
      break;
    default:
      return false;
  }
  out->at += (b.z * height + b.y) * pitch + b.x;
  return true;
}

CUresult copy_box(const char *what, const CUDA_MEMCPY3D *c, CUstream stream, bool wait) {
  if (c == nullptr) return CUDA_ERROR_INVALID_VALUE;
  copy_request r;
  const CUresult bad = describe_copy(what, *c, current_context()->device, &r);
  return bad != CUDA_SUCCESS ? bad : copy(r, stream, wait);
}

CUresult copy_rectangle(const char *what, const CUDA_MEMCPY2D *c, CUstream stream, bool wait) {
  if (c == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY3D box{};
  box.srcXInBytes = c->srcXInBytes;
  box.srcY = c->srcY;
  box.srcMemoryType = c->srcMemoryType;
  box.srcHost = c->srcHost;
  box.srcDevice = c->srcDevice;
  box.srcArray = c->srcArray;
  box.srcPitch = c->srcPitch;
  box.dstXInBytes = c->dstXInBytes;
  box.dstY = c->dstY;
  box.dstMemoryType = c->dstMemoryType;
  box.dstHost = c->dstHost;
  box.dstDevice = c->dstDevice;
  box.dstArray = c->dstArray;
  box.dstPitch = c->dstPitch;
  box.WidthInBytes = c->WidthInBytes;
  box.Height = c->Height;
  box.Depth = 1;
  return copy_box(what, &box, stream, wait);
}

CUresult copy_box_of_peers(const char *what, const CUDA_MEMCPY3D_PEER *c, CUstream stream,
                           bool wait) {
  if (c == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const context *const from = find_context(c->srcContext);
  const context *const to = find_context(c->dstContext);
  const auto needs = [](CUmemorytype type) {
    return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY;
  };
  const bool bad_from = from == nullptr && needs(c->srcMemoryType);
  const bool bad_to = to == nullptr && needs(c->dstMemoryType);
  if (bad_from || bad_to) return CUDA_ERROR_INVALID_CONTEXT;
  // The structures differ only in their contexts, which are the reserved words of the other one.
  static_assert(sizeof(CUDA_MEMCPY3D) == sizeof(CUDA_MEMCPY3D_PEER));
  CUDA_MEMCPY3D box{};
  std::memcpy(&box, c, sizeof box);
  copy_request r;
  const CUresult bad = describe_copy(what, box, current_context()->device, &r);
  if (bad != CUDA_SUCCESS) return bad;
  if (from != nullptr) r.from.device = from->device;
  if (to != nullptr) r.to.device = to->device;
  return copy(r, stream, wait);
}

}  // namespace

CUresult describe_copy(const char *what, const CUDA_MEMCPY3D &c, CUdevice device,
                       copy_request *out) {
  out->what = what;
  out->width = c.WidthInBytes;
  out->rows = c.Height;
  out->slices = c.Depth;
  const box_side from{c.srcMemoryType, c.srcHost, c.srcDevice, c.srcArray, c.srcXInBytes,
                      c.srcY,          c.srcZ,    c.srcLOD,    c.srcPitch, c.srcHeight};
  const box_side to{c.dstMemoryType, c.dstHost, c.dstDevice, c.dstArray, c.dstXInBytes,
                    c.dstY,          c.dstZ,    c.dstLOD,    c.dstPitch, c.dstHeight};
  if (!describe_box(from, c, device, &out->from) || !describe_box(to, c, device, &out->to))
    return CUDA_ERROR_INVALID_VALUE;
  return check_elements(out->to, out->from);
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_SYNC_ENTRY(cuMemcpy2D_v2, 3020, needs_context, 0, (const CUDA_MEMCPY2D *c), (c),
                    { return copy_rectangle("cuMemcpy2D", c, stream_, true); })
HOSTCUDA_SYNC_ENTRY(cuMemcpy2DUnaligned_v2, 3020, needs_context, 0, (const CUDA_MEMCPY2D *c), (c),
                    { return copy_rectangle("cuMemcpy2DUnaligned", c, stream_, true); })
HOSTCUDA_STREAM_ENTRY(cuMemcpy2DAsync_v2, 3020, needs_context, 0, stream,
                      (const CUDA_MEMCPY2D *c, CUstream stream), (c, stream),
                      { return copy_rectangle("cuMemcpy2DAsync", c, stream, false); })

HOSTCUDA_SYNC_ENTRY(cuMemcpy3D_v2, 3020, needs_context, 0, (const CUDA_MEMCPY3D *c), (c),
                    { return copy_box("cuMemcpy3D", c, stream_, true); })
HOSTCUDA_STREAM_ENTRY(cuMemcpy3DAsync_v2, 3020, needs_context, 0, stream,
                      (const CUDA_MEMCPY3D *c, CUstream stream), (c, stream),
                      { return copy_box("cuMemcpy3DAsync", c, stream, false); })
HOSTCUDA_SYNC_ENTRY(cuMemcpy3DPeer, 4000, needs_context, 0, (const CUDA_MEMCPY3D_PEER *c), (c),
                    { return copy_box_of_peers("cuMemcpy3DPeer", c, stream_, true); })
HOSTCUDA_STREAM_ENTRY(cuMemcpy3DPeerAsync, 4000, needs_context, 0, stream,
                      (const CUDA_MEMCPY3D_PEER *c, CUstream stream), (c, stream),
                      { return copy_box_of_peers("cuMemcpy3DPeerAsync", c, stream, false); })
