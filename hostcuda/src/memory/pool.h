// Registry of memory pools. pool.cpp creates and configures pools; pool_alloc.cpp allocates from
// them. Guarded by the_memory().mutex.
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
  bool imported = false;   // has imported blocks only
  bool hidden = false;     // memory of graphs; has no handle
  bool destroyed = false;  // deleted with its last block
};

struct pool_registry {
  std::set<memory_pool *> all;
  memory_pool *standard[kMaxDevices] = {};
  memory_pool *current[kMaxDevices] = {};
};

pool_registry &pools();

memory_pool *add_pool_locked(CUdevice device);
CUmemoryPool handle_of_pool(memory_pool *p);

// Whether a pool shares memory by POSIX descriptor.
bool pool_is_shareable(const memory_pool *pool);

// The default pool of a device. Created on first use.
memory_pool *standard_pool_locked(CUdevice device);

// Returns nullptr for an unknown or destroyed pool.
memory_pool *find_pool_locked(CUmemoryPool handle);

// Creates the file of a shareable pool. Returns nullptr without a descriptor.
std::shared_ptr<pool_file> make_pool_file(CUdevice device);

// Deletes a destroyed pool that has no blocks.
void delete_if_done_locked(memory_pool *p, dead_memory *dead);

}  // namespace hostcuda
