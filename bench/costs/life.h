// The life of one piece of memory, every call of it timed.
#pragma once

#include "bench/costs/machine.h"
#include "bench/costs/samples.h"

namespace stillmap::costs {

// Reserve, create, map, allow, ask, retain, unmap, release, free. What was timed before a refusal
// is in `into`.
status live_once(const machine &m, std::size_t bytes, call_times &into);

}  // namespace stillmap::costs
