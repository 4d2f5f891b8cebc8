// CUDA arrays and mipmapped arrays: handles, descriptors and the layout of their bytes.
//
// An array's bytes are a block of the device's memory, so that accounting, access rights, the oracle
// and the modes without bytes treat them as other device memory. Rows and slices follow each other
// without gaps. Only the handle names them: functions of linear memory refuse the block.
// hostcuda/docs/memory.md
#pragma once

#include <cuda.h>

#include <cstddef>

#include "hostcuda/src/context.h"
#include "hostcuda/src/memory/copy.h"

namespace hostcuda {

struct cuda_array {
  CUDA_ARRAY3D_DESCRIPTOR form{};
  std::size_t element = 0;           // bytes of an element with all of its channels
  CUdeviceptr at = 0;                // of its bytes
  context *ctx = nullptr;            // of its creator
  CUmipmappedArray whole = nullptr;  // if it is a level

  std::size_t row_bytes() const { return form.Width * element; }
  std::size_t rows() const { return form.Height == 0 ? 1 : form.Height; }
  std::size_t slices() const { return form.Depth == 0 ? 1 : form.Depth; }
  std::size_t bytes() const { return row_bytes() * rows() * slices(); }
};

// Checks format, channels, flags and extents as <cuda.h> documents them, against the attributes of
// the device, and returns the bytes of an element.
// Errors: INVALID_VALUE; NOT_SUPPORTED for compressed, packed and planar formats, and for sparse and
//         deferred arrays, which the device does not have.
CUresult check_array(const CUDA_ARRAY3D_DESCRIPTOR &form, CUdevice device, bool mipmapped,
                     std::size_t *element);

// Errors: INVALID_HANDLE.
CUresult find_array(CUarray handle, cuda_array *out);

// The side of a copy of `extent` at `origin`: width in bytes, rows and slices.
// Errors: INVALID_VALUE if there is no such array, if the box is not inside of it, or if it does not
//         begin and end between two elements.
CUresult array_side(const array_origin &origin, std::size_t width, std::size_t rows,
                    std::size_t slices, CUdevice device, copy_side *out);

// Arrays that are copied to each other have elements of the same size.
// Errors: INVALID_VALUE.
CUresult check_elements(const copy_side &to, const copy_side &from);

}  // namespace hostcuda
