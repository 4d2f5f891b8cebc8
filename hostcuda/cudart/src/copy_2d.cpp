// Copies of rectangles of linear memory, and of boxes of it as one rectangle for each layer.
#include "hostcuda/cudart/src/array.h"
#include "hostcuda/cudart/src/runtime.h"

namespace cudart {
namespace {

CUDA_MEMCPY2D rectangle_of(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                           size_t width, size_t rows) {
  CUDA_MEMCPY2D c{};
  c.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  c.dstDevice = address_of(to);
  c.dstPitch = to_pitch;
  c.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  c.srcDevice = address_of(from);
  c.srcPitch = from_pitch;
  c.WidthInBytes = width;
  c.Height = rows;
  return c;
}

CUresult copy_rows_now(const CUDA_MEMCPY2D &c, cudaStream_t stream) {
  return stream == nullptr ? CUDART_DRIVER(cuMemcpy2DUnaligned)(&c)
                           : CUDART_DRIVER_PTDS(cuMemcpy2DUnaligned)(&c);
}

cudaError_t copy_rectangle(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                           size_t width, size_t rows, cudaMemcpyKind kind, cudaStream_t stream,
                           bool wait) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
    return cudaErrorInvalidMemcpyDirection;
  if (rows > 1 && (to_pitch < width || from_pitch < width)) return cudaErrorInvalidPitchValue;
  CUDART_TRY(bind());
  if (width == 0 || rows == 0) return cudaSuccess;
  if (to == nullptr || from == nullptr) return cudaErrorInvalidValue;
  const CUDA_MEMCPY2D c = rectangle_of(to, to_pitch, from, from_pitch, width, rows);
  return from_driver(wait ? copy_rows_now(c, stream) : CUDART_DRIVER(cuMemcpy2DAsync)(&c, stream));
}

// One side of a copy of a box: where its first byte is, and the distance of its layers.
struct box_side {
  char *at;
  size_t pitch;
  size_t layer;
};

box_side side_of(const cudaPitchedPtr &p, const cudaPos &pos) {
  const size_t layer = p.pitch * p.ysize;
  return {static_cast<char *>(p.ptr) + pos.z * layer + pos.y * p.pitch + pos.x, p.pitch, layer};
}

cudaError_t copy_box(const cudaMemcpy3DParms *p, cudaStream_t stream, bool wait) {
  if (p == nullptr) return cudaErrorInvalidValue;
  if (p->srcArray != nullptr || p->dstArray != nullptr) return copy_box_of_arrays(*p, stream, wait);
  const box_side to = side_of(p->dstPtr, p->dstPos);
  const box_side from = side_of(p->srcPtr, p->srcPos);
  for (size_t z = 0; z < p->extent.depth; ++z)
    CUDART_TRY(copy_rectangle(to.at + z * to.layer, to.pitch, from.at + z * from.layer, from.pitch,
                              p->extent.width, p->extent.height, p->kind, stream, wait));
  return cudaSuccess;
}

}  // namespace
}  // namespace cudart

using namespace cudart;

CUDART_SYNC_ENTRY(cudaMemcpy2D,
                  (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                   size_t rows, cudaMemcpyKind kind),
                  {
                    return copy_rectangle(to, to_pitch, from, from_pitch, width, rows, kind,
                                          stream_, true);
                  })
CUDART_STREAM_ENTRY(cudaMemcpy2DAsync, stream,
                    (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                     size_t rows, cudaMemcpyKind kind, cudaStream_t stream),
                    {
                      return copy_rectangle(to, to_pitch, from, from_pitch, width, rows, kind,
                                            stream, false);
                    })
CUDART_SYNC_ENTRY(cudaMemcpy3D, (const cudaMemcpy3DParms *p),
                  { return copy_box(p, stream_, true); })
CUDART_STREAM_ENTRY(cudaMemcpy3DAsync, stream, (const cudaMemcpy3DParms *p, cudaStream_t stream),
                    { return copy_box(p, stream, false); })
