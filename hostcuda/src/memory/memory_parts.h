// Blocks of device memory, and the release functions of each kind of memory, which memory_reset.cpp
// calls when a context is destroyed or the machine is reset.
#pragma once

#include <cuda.h>

#include <cstddef>

#include "hostcuda/src/context.h"

namespace hostcuda {

// Allocates device memory in the current context, as cuMemAlloc does or (`owned`) for a CUDA array
// or a variable of GPU code, which cuMemFree refuses.
// Requires: a current context; `bytes` is not 0.
// Errors:   OUT_OF_MEMORY.
CUresult add_block(std::size_t bytes, bool owned, CUdeviceptr *out);

// Removes the block that starts at `at`. Requires: the caller has waited for the device.
// Errors: INVALID_VALUE.
CUresult remove_block(CUdeviceptr at);

// As cuMemFree of an owned block: waits for the device, and reports work that still uses it. `what`
// names the call.
CUresult end_owned_block(CUdeviceptr at, std::size_t bytes, CUdevice device, const char *what);

// Forgets the arrays of a context. Their bytes are blocks.
void forget_arrays(const context *ctx);
void release_block_memory(context *ctx);
void release_host_memory(context *ctx);

// Requires: no other thread is inside the driver.
void reset_arrays();
void reset_blocks();
void reset_ipc();
void reset_pools();
void reset_graph_memory();
void reset_host_memory();

}  // namespace hostcuda
