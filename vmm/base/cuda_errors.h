// The table of CUresult codes: name, meaning and portable condition of each. It needs neither a
// driver nor <cuda.h>. docs/errors.md#codes
#pragma once

#include <system_error>

#include "stillmap/vmm/base/error_code.h"

namespace stillmap {

struct cuda_error {
  int code;
  const char *name;     // as cuGetErrorName spells it
  const char *meaning;  // ours, one clause
  errc acts_as;         // errc{} where a caller cannot act on the code alone
};

// The entry of a CUresult. A code that is not in the table gets an entry named
// CUDA_ERROR_UNRECOGNISED, without a condition.
// Threads: safe. Cost: a binary search, no allocation.
const cuda_error &describe_cuda_error(int code) noexcept;

// Whether a call failed only because the driver or its context no longer exists. Everything that
// the call would have released was released with it.
bool driver_is_gone(std::error_code code) noexcept;

}  // namespace stillmap
