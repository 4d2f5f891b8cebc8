// What the code that nvcc generates registers before main(): images, kernels and variables.
#pragma once

#include <string>

#include "hostcuda/cudart/src/runtime.h"

namespace cudart {

// The kernel that is registered under a host function's address, or `function` itself if it is a
// kernel or function that the runtime has returned. Its image is loaded at the first use.
// Errors: InvalidDeviceFunction for an address that is neither.
cudaError_t find_kernel(const void *function, CUkernel *out);

// As find_kernel(), as what the driver's functions for CUfunction take.
cudaError_t find_function(const void *function, CUfunction *out);

// A kernel or function that the program may pass in place of a host function's address.
void remember_handle(const void *handle);

struct device_variable {
  CUdeviceptr at = 0;
  size_t bytes = 0;
};

// The variable that is registered under a host variable's address, on this thread's device.
// Errors: InvalidSymbol
cudaError_t find_variable(const void *symbol, device_variable *out);

}  // namespace cudart
