// Pools of stream-ordered memory, as they are kept: pool.cpp makes and sets them up, pool_alloc.cpp
// allocates from them. Everything here is guarded by the_memory().mutex.
#pragma once

#include <set>
#include <vector>

#include "hostcuda/src/machine.h"
#include "hostcuda/src/memory/arena.h"
#include "hostcuda/src/memory/memory_state.h"

namespace hostcuda {

struct memory_pool {
  arena a;
  access_bits access = 0;
  std::uint64_t release_threshold = 0;
  int reuse[3] = {1, 1, 1};
  bool is_default = false;
  bool destroyed = false;  // gone once its last block is
};

struct pool_books {
  std::set<memory_pool *> all;
  memory_pool *standard[kMaxDevices] = {};
  memory_pool *current[kMaxDevices] = {};
};

pool_books &pools();

// Whether this machine has pools at all.
bool pools_here();

// The pool a device has from the start; made when first asked for.
memory_pool *standard_pool_locked(CUdevice device);

// nullptr: no pool, or one that was destroyed.
memory_pool *find_pool_locked(CUmemoryPool handle);

// A pool that was destroyed goes with its last block.
void delete_if_done_locked(memory_pool *p, std::vector<physical *> *dead);

}  // namespace hostcuda
