// Handles of physical allocations. All functions require the_memory().mutex.
#pragma once

#include "hostcuda/src/memory/memory_state.h"

namespace hostcuda {

// Creates a handle that the program holds once. The handle owns one reference of `memory`.
CUmemGenericAllocationHandle add_handle_locked(physical *memory, const CUmemAllocationProp &prop);

// Returns nullptr if the handle is unknown or no longer held by the program.
vmm_handle *find_handle_locked(CUmemGenericAllocationHandle value);

// Deletes a handle that is neither held nor mapped, and drops its reference of the memory.
void drop_if_unused_locked(vmm_handle *handle, dead_memory *dead);

}  // namespace hostcuda
