// The life of one piece of memory, from its driver and back, every call of it timed.
#pragma once

#include "bench/costs/machine.h"
#include "bench/costs/samples.h"

namespace stillmap::costs {

struct life {
  bool vmm;  // needs it
  // What was timed before a refusal is in `into`. The stream is the caller's own, and non-blocking:
  // the legacy one would have everything else wait.
  status (*once)(const machine &m, stream_handle stream, std::size_t bytes, call_times &into);
};

extern const life mapped_life;   // reserve, create, map, allow, ask, retain, unmap, release, free
extern const life shared_life;   // create, export, import, release
extern const life plain_life;    // cuMemAlloc
extern const life ordered_life;  // cuMemAllocAsync, from an empty pool and from one that has some
extern const life pinned_life;   // cuMemHostAlloc

}  // namespace stillmap::costs
