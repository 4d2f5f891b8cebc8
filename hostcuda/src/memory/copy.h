// Copies between linear memory and CUDA arrays in up to three dimensions, and memsets. The bytes of an
// array are linear memory too, which only its handle names (array.h).
#pragma once

#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/execution.h"
#include "hostcuda/src/memory/memory_state.h"

namespace hostcuda {

enum class side {
  device,   // must be registered memory
  host,     // any host address; registered memory is checked like device memory
  unified,  // either: an address that is not registered is host memory
};

// Where a copy begins in a CUDA array: the description of its bytes in a graph.
struct array_origin {
  CUarray array = nullptr;  // nullptr: the side is linear memory
  std::size_t x = 0;        // in bytes
  std::size_t y = 0;
  std::size_t z = 0;
};

struct copy_side {
  side kind = side::unified;
  CUdeviceptr at = 0;
  std::size_t pitch = 0;  // distance between rows; ignored for one row
  CUdevice device = 0;    // the device that accesses the memory
  std::size_t slice = 0;  // distance between slices; ignored for one slice
  array_origin origin{};  // of an array, whose bytes `at`, `pitch` and `slice` describe
};

struct copy_request {
  const char *what = "";
  copy_side to;
  copy_side from;
  std::size_t width = 0;  // bytes of a row
  std::size_t rows = 1;
  std::size_t slices = 1;
};

// Describes a copy in up to three dimensions. `device` accesses both sides.
// Errors: INVALID_VALUE, also for an array that does not exist.
CUresult describe_copy(const char *what, const CUDA_MEMCPY3D &c, CUdevice device,
                       copy_request *out);

// Checks a copy as CUDA does at the call, and makes its operation. Of zero bytes: one that does
// nothing.
CUresult make_copy(const copy_request &request, operation *op);

// Queues the operation that make_copy() has made of the request.
CUresult queue_copy(const copy_request &request, operation op, CUstream stream);

// Checks the request as CUDA does at the call, then queues it on `stream`; with `wait`, also waits.
// Errors: INVALID_VALUE (no access, not mapped, bad address), STREAM_CAPTURE_UNSUPPORTED.
CUresult copy(const copy_request &request, CUstream stream, bool wait);

// The operation of a memset node.
// Errors: INVALID_VALUE.
CUresult make_memset(const CUDA_MEMSET_NODE_PARAMS &p, CUdevice device, operation *op);

}  // namespace hostcuda
