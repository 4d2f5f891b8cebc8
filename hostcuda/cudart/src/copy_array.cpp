// Copies to, from and between arrays.
#include <algorithm>

#include "hostcuda/cudart/src/array.h"

namespace cudart {
namespace {

bool is_direction(cudaMemcpyKind kind) {
  return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault;
}

// Either side of a copy of a rectangle or of a run: an array, or linear memory in rows.
struct flat_side {
  cudaArray_const_t array = nullptr;
  size_t x = 0;  // in bytes
  size_t y = 0;
  CUdeviceptr at = 0;  // of linear memory
  size_t pitch = 0;
};

flat_side linear_side(const void *at, size_t pitch) {
  return {nullptr, 0, 0, address_of(at), pitch};
}

cudaError_t copy_flat(const flat_side &to, const flat_side &from, size_t width, size_t rows,
                      cudaStream_t stream, bool wait) {
  CUDA_MEMCPY2D c{};
  c.dstMemoryType = to.array != nullptr ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED;
  c.dstArray = array_of(to.array);
  c.dstXInBytes = to.x;
  c.dstY = to.y;
  c.dstDevice = to.at;
  c.dstPitch = to.pitch;
  c.srcMemoryType = from.array != nullptr ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED;
  c.srcArray = array_of(from.array);
  c.srcXInBytes = from.x;
  c.srcY = from.y;
  c.srcDevice = from.at;
  c.srcPitch = from.pitch;
  c.WidthInBytes = width;
  c.Height = rows;
  if (!wait) return from_driver(CUDART_DRIVER(cuMemcpy2DAsync)(&c, stream));
  return from_driver(stream == nullptr ? CUDART_DRIVER(cuMemcpy2DUnaligned)(&c)
                                       : CUDART_DRIVER_PTDS(cuMemcpy2DUnaligned)(&c));
}

// Checks what is wrong without the driver's help: an argument that is null.
cudaError_t check_side(const flat_side &s, bool is_array) {
  return (is_array ? s.array == nullptr : s.at == 0) ? cudaErrorInvalidValue : cudaSuccess;
}

enum class flat { to_array, from_array, between };

cudaError_t begin_flat(flat which, const flat_side &to, const flat_side &from,
                       cudaMemcpyKind kind) {
  if (!is_direction(kind)) return cudaErrorInvalidMemcpyDirection;
  CUDART_TRY(check_side(to, which != flat::from_array));
  CUDART_TRY(check_side(from, which != flat::to_array));
  return bind();
}

cudaError_t copy_rows_of_arrays(flat which, const flat_side &to, const flat_side &from,
                                size_t width, size_t rows, cudaMemcpyKind kind, cudaStream_t stream,
                                bool wait) {
  CUDART_TRY(begin_flat(which, to, from, kind));
  for (const flat_side *s : {&to, &from})
    if (s->array == nullptr && rows > 1 && s->pitch < width) return cudaErrorInvalidPitchValue;
  if (width == 0 || rows == 0) return cudaSuccess;
  return copy_flat(to, from, width, rows, stream, wait);
}

// One side of a run of bytes, which continues at the beginning of the next row of an array.
struct run_side {
  flat_side next;
  array_extent form{};  // of an array

  bool is_array() const { return next.array != nullptr; }
  // Bytes up to the end of the row; a run in linear memory has no rows.
  size_t in_row() const { return is_array() ? form.row - next.x : SIZE_MAX; }
  void skip(size_t bytes) {
    if (!is_array()) {
      next.at += bytes;
      return;
    }
    next.x += bytes;
    next.y += next.x / form.row;
    next.x %= form.row;
  }
};

cudaError_t find_run(run_side *s, size_t bytes) {
  if (!s->is_array()) return cudaSuccess;
  CUDART_TRY(array_layout(s->next.array, &s->form));
  const array_extent &f = s->form;
  if (s->next.x >= f.row || s->next.y >= f.rows) return cudaErrorInvalidValue;
  if (bytes > (f.rows - s->next.y) * f.row - s->next.x) return cudaErrorInvalidValue;
  return s->next.x % f.element == 0 && bytes % f.element == 0 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t copy_run(flat which, const flat_side &to, const flat_side &from, size_t bytes,
                     cudaMemcpyKind kind, cudaStream_t stream, bool wait) {
  CUDART_TRY(begin_flat(which, to, from, kind));
  if (bytes == 0) return cudaSuccess;
  run_side d{to}, s{from};
  CUDART_TRY(find_run(&d, bytes));
  CUDART_TRY(find_run(&s, bytes));
  if (d.is_array() && s.is_array() && d.form.element != s.form.element)
    return cudaErrorInvalidValue;
  for (size_t left = bytes; left != 0;) {
    // Whole rows go in one copy where both sides agree about them.
    const size_t row = std::min(d.in_row(), s.in_row());
    const bool agree = d.next.x == 0 && s.next.x == 0 && (!d.is_array() || d.form.row == row) &&
                       (!s.is_array() || s.form.row == row);
    const size_t rows = agree ? std::max<size_t>(left / row, 1) : 1;
    const size_t width = std::min(row, left);
    if (!d.is_array()) d.next.pitch = width;
    if (!s.is_array()) s.next.pitch = width;
    CUDART_TRY(copy_flat(d.next, s.next, width, rows, stream, wait));
    d.skip(width * rows);
    s.skip(width * rows);
    left -= width * rows;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t copy_box_of_arrays(const cudaMemcpy3DParms &p, cudaStream_t stream, bool wait) {
  if (!is_direction(p.kind)) return cudaErrorInvalidMemcpyDirection;
  // Each side is either an array or an address.
  if ((p.srcArray != nullptr) == (p.srcPtr.ptr != nullptr)) return cudaErrorInvalidValue;
  if ((p.dstArray != nullptr) == (p.dstPtr.ptr != nullptr)) return cudaErrorInvalidValue;
  CUDART_TRY(bind());
  array_extent form;
  CUDART_TRY(array_layout(p.srcArray != nullptr ? p.srcArray : p.dstArray, &form));
  CUDA_MEMCPY3D c{};
  c.srcMemoryType = p.srcArray != nullptr ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED;
  c.srcArray = array_of(p.srcArray);
  c.srcXInBytes = p.srcPos.x * (p.srcArray != nullptr ? form.element : 1);
  c.srcY = p.srcPos.y;
  c.srcZ = p.srcPos.z;
  c.srcDevice = address_of(p.srcPtr.ptr);
  c.srcPitch = p.srcPtr.pitch;
  c.srcHeight = p.srcPtr.ysize;
  c.dstMemoryType = p.dstArray != nullptr ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED;
  c.dstArray = array_of(p.dstArray);
  c.dstXInBytes = p.dstPos.x * (p.dstArray != nullptr ? form.element : 1);
  c.dstY = p.dstPos.y;
  c.dstZ = p.dstPos.z;
  c.dstDevice = address_of(p.dstPtr.ptr);
  c.dstPitch = p.dstPtr.pitch;
  c.dstHeight = p.dstPtr.ysize;
  c.WidthInBytes = p.extent.width * form.element;
  c.Height = p.extent.height;
  c.Depth = p.extent.depth;
  if (!wait) return from_driver(CUDART_DRIVER(cuMemcpy3DAsync)(&c, stream));
  return from_driver(stream == nullptr ? CUDART_DRIVER(cuMemcpy3D)(&c)
                                       : CUDART_DRIVER_PTDS(cuMemcpy3D)(&c));
}

}  // namespace cudart

using namespace cudart;

CUDART_SYNC_ENTRY(cudaMemcpy2DToArray,
                  (cudaArray_t to, size_t x, size_t y, const void *from, size_t pitch, size_t width,
                   size_t rows, cudaMemcpyKind kind),
                  {
                    return copy_rows_of_arrays(flat::to_array, {to, x, y}, linear_side(from, pitch),
                                               width, rows, kind, stream_, true);
                  })
CUDART_STREAM_ENTRY(cudaMemcpy2DToArrayAsync, stream,
                    (cudaArray_t to, size_t x, size_t y, const void *from, size_t pitch,
                     size_t width, size_t rows, cudaMemcpyKind kind, cudaStream_t stream),
                    {
                      return copy_rows_of_arrays(flat::to_array, {to, x, y},
                                                 linear_side(from, pitch), width, rows, kind,
                                                 stream, false);
                    })
CUDART_SYNC_ENTRY(cudaMemcpy2DFromArray,
                  (void *to, size_t pitch, cudaArray_const_t from, size_t x, size_t y, size_t width,
                   size_t rows, cudaMemcpyKind kind),
                  {
                    return copy_rows_of_arrays(flat::from_array, linear_side(to, pitch),
                                               {from, x, y}, width, rows, kind, stream_, true);
                  })
CUDART_STREAM_ENTRY(cudaMemcpy2DFromArrayAsync, stream,
                    (void *to, size_t pitch, cudaArray_const_t from, size_t x, size_t y,
                     size_t width, size_t rows, cudaMemcpyKind kind, cudaStream_t stream),
                    {
                      return copy_rows_of_arrays(flat::from_array, linear_side(to, pitch),
                                                 {from, x, y}, width, rows, kind, stream, false);
                    })
CUDART_SYNC_ENTRY(cudaMemcpy2DArrayToArray,
                  (cudaArray_t to, size_t to_x, size_t to_y, cudaArray_const_t from, size_t from_x,
                   size_t from_y, size_t width, size_t rows, cudaMemcpyKind kind),
                  {
                    return copy_rows_of_arrays(flat::between, {to, to_x, to_y},
                                               {from, from_x, from_y}, width, rows, kind, stream_,
                                               true);
                  })

CUDART_SYNC_ENTRY(
    cudaMemcpyToArray,
    (cudaArray_t to, size_t x, size_t y, const void *from, size_t bytes, cudaMemcpyKind kind), {
      return copy_run(flat::to_array, {to, x, y}, linear_side(from, 0), bytes, kind, stream_, true);
    })
CUDART_STREAM_ENTRY(
    cudaMemcpyToArrayAsync, stream,
    (cudaArray_t to, size_t x, size_t y, const void *from, size_t bytes, cudaMemcpyKind kind,
     cudaStream_t stream),
    {
      return copy_run(flat::to_array, {to, x, y}, linear_side(from, 0), bytes, kind, stream, false);
    })
CUDART_SYNC_ENTRY(cudaMemcpyFromArray,
                  (void *to, cudaArray_const_t from, size_t x, size_t y, size_t bytes,
                   cudaMemcpyKind kind),
                  {
                    return copy_run(flat::from_array, linear_side(to, 0), {from, x, y}, bytes, kind,
                                    stream_, true);
                  })
CUDART_STREAM_ENTRY(cudaMemcpyFromArrayAsync, stream,
                    (void *to, cudaArray_const_t from, size_t x, size_t y, size_t bytes,
                     cudaMemcpyKind kind, cudaStream_t stream),
                    {
                      return copy_run(flat::from_array, linear_side(to, 0), {from, x, y}, bytes,
                                      kind, stream, false);
                    })
CUDART_SYNC_ENTRY(cudaMemcpyArrayToArray,
                  (cudaArray_t to, size_t to_x, size_t to_y, cudaArray_const_t from, size_t from_x,
                   size_t from_y, size_t bytes, cudaMemcpyKind kind),
                  {
                    return copy_run(flat::between, {to, to_x, to_y}, {from, from_x, from_y}, bytes,
                                    kind, stream_, true);
                  })
