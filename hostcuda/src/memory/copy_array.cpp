// The sides of copies that are arrays, and the one-dimensional copies of arrays.
#include "hostcuda/src/context.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/memory/array.h"
#include "hostcuda/src/memory/copy.h"
#include "hostcuda/src/memory/memory_state.h"

namespace hostcuda {
namespace {

bool fits(std::size_t first, std::size_t count, std::size_t all) {
  return first <= all && count <= all - first;
}

CUresult line_side(CUarray handle, std::size_t offset, std::size_t bytes, CUdevice device,
                   copy_side *out) {
  cuda_array a;
  if (find_array(handle, &a) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  if (a.rows() != 1 || a.slices() != 1) return CUDA_ERROR_INVALID_VALUE;
  return array_side({handle, offset}, bytes, 1, 1, device, out);
}

// Either side of a one-dimensional copy.
struct line_place {
  CUarray array = nullptr;
  std::size_t offset = 0;  // in the array
  side kind = side::device;
  CUdeviceptr at = 0;  // if it is no array
};

CUresult describe_line(const line_place &p, std::size_t bytes, bool is_array, copy_side *out) {
  const CUdevice device = current_context()->device;
  if (is_array) return line_side(p.array, p.offset, bytes, device, out);
  *out = {p.kind, p.at, bytes, device};
  return CUDA_SUCCESS;
}

enum class arrays { to, from, both };

CUresult copy_line(const char *what, arrays which, const line_place &to, const line_place &from,
                   std::size_t bytes, CUstream stream, bool wait) {
  copy_request c;
  c.what = what;
  c.width = bytes;
  CUresult r = describe_line(to, bytes, which != arrays::from, &c.to);
  if (r == CUDA_SUCCESS) r = describe_line(from, bytes, which != arrays::to, &c.from);
  if (r == CUDA_SUCCESS) r = check_elements(c.to, c.from);
  return r != CUDA_SUCCESS ? r : copy(c, stream, wait);
}

}  // namespace

CUresult array_side(const array_origin &origin, std::size_t width, std::size_t rows,
                    std::size_t slices, CUdevice device, copy_side *out) {
  cuda_array a;
  if (find_array(origin.array, &a) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  if (!fits(origin.x, width, a.row_bytes()) || !fits(origin.y, rows, a.rows()) ||
      !fits(origin.z, slices, a.slices()))
    return CUDA_ERROR_INVALID_VALUE;
  if (origin.x % a.element != 0 || width % a.element != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t pitch = a.row_bytes(), slice = pitch * a.rows();
  *out = {side::device, a.at + origin.z * slice + origin.y * pitch + origin.x, pitch, device, slice,
          origin};
  return CUDA_SUCCESS;
}

CUresult check_elements(const copy_side &to, const copy_side &from) {
  if (to.origin.array == nullptr || from.origin.array == nullptr) return CUDA_SUCCESS;
  cuda_array a, b;
  if (find_array(to.origin.array, &a) != CUDA_SUCCESS ||
      find_array(from.origin.array, &b) != CUDA_SUCCESS)
    return CUDA_ERROR_INVALID_VALUE;
  return a.element == b.element ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_SYNC_ENTRY(cuMemcpyHtoA_v2, 3020, needs_context, bytes,
                    (CUarray to, size_t offset, const void *from, size_t bytes),
                    (to, offset, from, bytes), {
                      return copy_line("cuMemcpyHtoA", arrays::to, {to, offset},
                                       {nullptr, 0, side::host, address_of(from)}, bytes, stream_,
                                       true);
                    })
HOSTCUDA_SYNC_ENTRY(cuMemcpyAtoH_v2, 3020, needs_context, bytes,
                    (void *to, CUarray from, size_t offset, size_t bytes),
                    (to, from, offset, bytes), {
                      return copy_line("cuMemcpyAtoH", arrays::from,
                                       {nullptr, 0, side::host, address_of(to)}, {from, offset},
                                       bytes, stream_, true);
                    })
HOSTCUDA_SYNC_ENTRY(cuMemcpyDtoA_v2, 3020, needs_context, bytes,
                    (CUarray to, size_t offset, CUdeviceptr from, size_t bytes),
                    (to, offset, from, bytes), {
                      return copy_line("cuMemcpyDtoA", arrays::to, {to, offset},
                                       {nullptr, 0, side::device, from}, bytes, stream_, true);
                    })
HOSTCUDA_SYNC_ENTRY(cuMemcpyAtoD_v2, 3020, needs_context, bytes,
                    (CUdeviceptr to, CUarray from, size_t offset, size_t bytes),
                    (to, from, offset, bytes), {
                      return copy_line("cuMemcpyAtoD", arrays::from, {nullptr, 0, side::device, to},
                                       {from, offset}, bytes, stream_, true);
                    })
HOSTCUDA_SYNC_ENTRY(cuMemcpyAtoA_v2, 3020, needs_context, bytes,
                    (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),
                    (to, to_offset, from, from_offset, bytes), {
                      return copy_line("cuMemcpyAtoA", arrays::both, {to, to_offset},
                                       {from, from_offset}, bytes, stream_, true);
                    })
HOSTCUDA_STREAM_ENTRY(cuMemcpyHtoAAsync_v2, 3020, needs_context, bytes, stream,
                      (CUarray to, size_t offset, const void *from, size_t bytes, CUstream stream),
                      (to, offset, from, bytes, stream), {
                        return copy_line("cuMemcpyHtoAAsync", arrays::to, {to, offset},
                                         {nullptr, 0, side::host, address_of(from)}, bytes, stream,
                                         false);
                      })
HOSTCUDA_STREAM_ENTRY(cuMemcpyAtoHAsync_v2, 3020, needs_context, bytes, stream,
                      (void *to, CUarray from, size_t offset, size_t bytes, CUstream stream),
                      (to, from, offset, bytes, stream), {
                        return copy_line("cuMemcpyAtoHAsync", arrays::from,
                                         {nullptr, 0, side::host, address_of(to)}, {from, offset},
                                         bytes, stream, false);
                      })
