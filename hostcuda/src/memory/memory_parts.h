// What each kind of memory does when a context or the whole machine goes. memory_reset.cpp calls
// it.
#pragma once

#include "hostcuda/src/context.h"

namespace hostcuda {

void release_block_memory(context *ctx);
void release_host_memory(context *ctx);

// Requires: no other thread is inside the driver.
void reset_blocks();
void reset_pools();
void reset_host_memory();

}  // namespace hostcuda
