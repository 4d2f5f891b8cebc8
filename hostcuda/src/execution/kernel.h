// Launches of kernels, by a call or by a node of a graph.
#pragma once

#include "hostcuda/src/execution.h"
#include "hostcuda/src/execution/module.h"

namespace hostcuda {

struct launch_shape {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared = 0;  // bytes of dynamic shared memory
};

// Makes the operation of a launch. Copies the arguments. Without a host function (kernels=skip) it
// only counts.
// Errors: INVALID_VALUE; NOT_FOUND if there is no host function for the kernel.
CUresult make_launch(const function &f, const launch_shape &shape, void **params, void **extra,
                     operation *op);

}  // namespace hostcuda
