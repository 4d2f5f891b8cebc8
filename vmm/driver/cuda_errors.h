// What a driver's error codes are called and what a caller can do about each. No driver and no
// <cuda.h> is needed to read one. docs/design.md#errors
#pragma once

#include "stillmap/vmm/error.h"

namespace stillmap {

struct cuda_error {
  int code;
  const char *name;     // as cuGetErrorName spells it
  const char *meaning;  // ours, one clause
  errc acts_as;    // errc{} where a caller cannot act on the code alone
};

// The entry of a CUresult; one named CUDA_ERROR_UNRECOGNISED, meaning nothing, for a code that is
// not in the table.
// Threads: safe. Cost: a binary search, no allocation.
const cuda_error &describe_cuda_error(int code) noexcept;

// Whether a call failed only because the driver or its context is gone already: whatever was to be
// given back went with it.
bool driver_is_gone(const error &e) noexcept;

}  // namespace stillmap
