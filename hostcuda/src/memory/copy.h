// Copy between two ranges of linear memory, one-dimensional or with rows and pitches.
#pragma once

#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/memory/memory_state.h"

namespace hostcuda {

enum class side {
  device,   // must be registered memory
  host,     // any host address; registered memory is checked like device memory
  unified,  // either: an address that is not registered is host memory
};

struct copy_side {
  side kind = side::unified;
  CUdeviceptr at = 0;
  std::size_t pitch = 0;  // distance between rows; ignored for one row
  CUdevice device = 0;    // the device that accesses the memory
};

struct copy_request {
  const char *what = "";
  copy_side to;
  copy_side from;
  std::size_t width = 0;  // bytes of a row
  std::size_t rows = 1;
};

// Checks the request as CUDA does at the call, then queues it on `stream`; with `wait`, also waits.
// Errors: INVALID_VALUE (no access, not mapped, bad address), STREAM_CAPTURE_UNSUPPORTED.
CUresult copy(const copy_request &request, CUstream stream, bool wait);

}  // namespace hostcuda
