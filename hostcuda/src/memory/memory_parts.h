// Release functions of each kind of memory, called by memory_reset.cpp when a context is destroyed
// or the machine is reset.
#pragma once

#include "hostcuda/src/context.h"

namespace hostcuda {

void release_block_memory(context *ctx);
void release_host_memory(context *ctx);

// Requires: no other thread is inside the driver.
void reset_blocks();
void reset_pools();
void reset_graph_memory();
void reset_host_memory();

}  // namespace hostcuda
