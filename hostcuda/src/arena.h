// Small blocks out of 2 MiB pieces of device memory, as the driver does it: behind cuMemAlloc (one
// arena per device) and behind every memory pool.
#pragma once

#include <set>

#include "memory_state.h"

namespace hostcuda {

struct arena {
  int location = 0;
  bool keeps_empty = false;  // a pool keeps chunks without blocks until it is trimmed
  std::size_t reserved = 0;  // bytes of its chunks
  std::size_t used = 0;      // bytes of its blocks, rounded
  std::size_t reserved_high = 0;
  std::size_t used_high = 0;
  std::set<CUdeviceptr> chunks;
  std::map<CUdeviceptr, std::size_t> free_at;                  // never across two chunks
  std::set<std::pair<std::size_t, CUdeviceptr>> free_by_size;  // best fit first
};

// Allocates and enters a block; `proto` gives the fields that are the caller's business.
// Errors: OUT_OF_MEMORY. Requires: the lock is not held.
CUresult arena_allocate(arena *a, std::size_t bytes, const block &proto, CUdeviceptr *out);

// Removes a block and gives empty chunks to `dead`. Requires the lock.
void arena_free_locked(std::map<CUdeviceptr, block>::iterator it, std::vector<physical *> *dead);

// Gives empty chunks away until at most `keep` bytes are reserved. Requires the lock.
void arena_trim_locked(arena *a, std::size_t keep, std::vector<physical *> *dead);

// A pool has an empty chunk: the next synchronisation looks whether it holds too much.
void pool_has_an_empty_chunk();

// Every pool of the device gives back what it does not use. Requires: the lock is not held.
void trim_every_pool(int location);

// The access a pool's memory grants.
access_bits pool_access(const memory_pool *pool);

}  // namespace hostcuda
