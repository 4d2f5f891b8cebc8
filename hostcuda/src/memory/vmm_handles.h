// Handles of physical allocations, all with the_memory().mutex held.
#pragma once

#include "hostcuda/src/memory/memory_state.h"

namespace hostcuda {

// Enters a handle the program holds once; it owns one reference of `memory`.
CUmemGenericAllocationHandle add_handle_locked(physical *memory, const CUmemAllocationProp &prop);

// nullptr: unknown, or no longer held by the program.
vmm_handle *find_handle_locked(CUmemGenericAllocationHandle value);

// Forgets a handle neither held nor mapped; its memory may go with it.
void drop_if_unused_locked(vmm_handle *handle, std::vector<physical *> *dead);

}  // namespace hostcuda
