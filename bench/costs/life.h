// The lives of pieces of memory, one for each kind, with every call timed.
#pragma once

#include "bench/costs/machine.h"
#include "bench/costs/samples.h"

namespace stillmap::costs {

// What was timed before a refusal is in `into`. `stream` must be a non-blocking stream of the
// caller: the legacy stream would delay all other work.
using life = status(const machine &m, stream_handle stream, std::size_t bytes, call_times &into);

life mapped_life;   // reserve, create, map, set and get access, retain, unmap, release, free
life shared_life;   // create, export, import, release
life plain_life;    // cuMemAlloc
life ordered_life;  // cuMemAllocAsync, from an empty pool and from one that has memory
life pinned_life;   // cuMemHostAlloc

}  // namespace stillmap::costs
