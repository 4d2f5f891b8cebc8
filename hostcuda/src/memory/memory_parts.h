// Release functions of each kind of memory, called by memory_reset.cpp when a context is destroyed
// or the machine is reset.
#pragma once

#include <cuda.h>

#include "hostcuda/src/context.h"

namespace hostcuda {

// Removes the block that starts at `at`. Requires: the caller has waited for the device.
// Errors: INVALID_VALUE.
CUresult remove_block(CUdeviceptr at);

void release_block_memory(context *ctx);
void release_host_memory(context *ctx);

// Requires: no other thread is inside the driver.
void reset_blocks();
void reset_ipc();
void reset_pools();
void reset_graph_memory();
void reset_host_memory();

}  // namespace hostcuda
