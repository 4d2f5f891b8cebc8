// CUDA arrays under the driver's types, and what copies need to know of them.
#pragma once

#include "hostcuda/cudart/src/runtime.h"

namespace cudart {

CUarray array_of(cudaArray_const_t array);

// In bytes, and rows of one slice.
struct array_extent {
  size_t element = 0;
  size_t row = 0;
  size_t rows = 0;
};

// Requires: bind().
// Errors:   cudaErrorInvalidValue; cudaErrorNotSupported for elements that are not bytes of channels.
cudaError_t array_layout(cudaArray_const_t array, array_extent *out);

// cudaMemcpy3D with an array on one side or on both.
cudaError_t copy_box_of_arrays(const cudaMemcpy3DParms &p, cudaStream_t stream, bool wait);

}  // namespace cudart
