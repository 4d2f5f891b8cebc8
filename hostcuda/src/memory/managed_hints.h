// Hints about managed memory, which a program reads back. They have no effect.
#pragma once

#include "hostcuda/src/memory/memory_state.h"

namespace hostcuda {

// Forgets the hints of the managed block at `at`. Requires the lock.
void forget_hints_locked(CUdeviceptr at);

}  // namespace hostcuda
