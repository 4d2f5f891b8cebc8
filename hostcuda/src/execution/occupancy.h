// Occupancy: how many blocks of a kernel fit on a multiprocessor.
#pragma once

#include <cuda.h>

#include <cstddef>

#include "hostcuda/src/execution/module.h"

namespace hostcuda {

// The smallest of four limits: blocks, threads, registers and shared memory. 0 if a block of
// `threads` with `shared` bytes of dynamic shared memory cannot run at all.
// Requires: threads > 0.
int blocks_per_multiprocessor(const function &f, int threads, std::size_t shared);

// Whether a block may have `bytes` of dynamic shared memory, beside what the kernel has of its own.
bool shared_memory_fits(const function &f, std::size_t bytes);

}  // namespace hostcuda
