// Resources of devices: multiprocessors, which splits divide and descriptors collect.
#pragma once

#include "hostcuda/src/cuda_names.h"

#if CUDA_VERSION >= 12040
#include "hostcuda/src/green_context.h"

namespace hostcuda {

// All multiprocessors of a device or a green context (`green`: nullptr for the device).
// Errors: INVALID_VALUE, INVALID_RESOURCE_TYPE.
CUresult get_resource(CUdevice device, const green_context *green, CUdevResourceType type,
                      CUdevResource *out);

// What a descriptor of cuDevResourceGenerateDesc describes. Returns false for an unknown one.
bool find_resource_descriptor(CUdevResourceDesc handle, CUdevice *device,
                              unsigned *multiprocessors);

}  // namespace hostcuda
#endif
