// A copy between two pieces of linear memory, one-dimensional or of rows.
#pragma once

#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/memory/memory_state.h"

namespace hostcuda {

enum class side {
  device,   // must be memory the driver knows
  host,     // any address of the program; one of ours is checked like device memory
  unified,  // either: what the books do not know is host memory
};

struct copy_side {
  side kind = side::unified;
  CUdeviceptr at = 0;
  std::size_t pitch = 0;  // distance of two rows; ignored with one row
  CUdevice device = 0;    // on whose behalf it is accessed
};

struct copy_request {
  const char *what = "";
  copy_side to;
  copy_side from;
  std::size_t width = 0;  // bytes of a row
  std::size_t rows = 1;
};

// Checks the request as CUDA does at the call, then queues it on `stream`, or runs it and waits.
// Errors: INVALID_VALUE (no access, not mapped, bad address), STREAM_CAPTURE_UNSUPPORTED.
CUresult copy(const copy_request &request, CUstream stream, bool wait);

}  // namespace hostcuda
