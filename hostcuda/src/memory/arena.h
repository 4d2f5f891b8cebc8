// Small blocks out of 2 MiB pieces of device memory, as the driver does it: behind cuMemAlloc (one
// arena per device) and behind every memory pool.
#pragma once

#include <map>
#include <set>
#include <unordered_map>

#include "hostcuda/src/execution.h"
#include "hostcuda/src/memory/memory_state.h"

namespace hostcuda {

// Bytes that were freed by work which has not run yet. They are free to whoever is queued behind
// it.
struct parked_piece {
  std::size_t bytes = 0;
  std::uint64_t tick = 0;  // of the last free in it
};
// Those of one stream.
struct parked_line {
  std::map<CUdeviceptr, parked_piece> at;  // never across two chunks
  std::set<std::pair<std::size_t, CUdeviceptr>> by_size;
  std::set<std::pair<std::uint64_t, CUdeviceptr>> by_tick;
};

struct arena {
  int location = 0;
  memory_pool *pool = nullptr;  // whose it is, if a pool's
  bool keeps_empty = false;     // a pool keeps chunks without blocks until it is trimmed
  std::size_t reserved = 0;     // bytes of its chunks
  std::size_t used = 0;         // bytes of its blocks, rounded
  std::size_t reserved_high = 0;
  std::size_t used_high = 0;
  std::set<CUdeviceptr> chunks;
  std::map<CUdeviceptr, std::size_t> free_at;                  // never across two chunks
  std::set<std::pair<std::size_t, CUdeviceptr>> free_by_size;  // best fit first
  std::unordered_map<std::uint64_t, parked_line> parked;       // by stream
  std::size_t frees_queued = 0;                                // that have not run
};

// Allocates and enters a block; `proto` gives the fields that are the caller's business.
// `order`: of the stream that it is for; nullptr: nothing parked is taken. `follows`: also what
// other streams freed before something that this one waits for.
// Errors: OUT_OF_MEMORY. Requires: the lock is not held.
CUresult arena_allocate(arena *a, std::size_t bytes, const block &proto, CUdeviceptr *out,
                        const stream_order *order = nullptr, bool follows = false);

// Parks a block whose free is queued at `place`: it is no block any more, and its bytes may be
// handed out to what comes behind. Requires the lock.
void arena_park_locked(std::map<CUdeviceptr, block>::iterator it, const place_in_time &place);
// That free runs: what it and earlier ones of its stream parked is anybody's. False: the block was
// not parked. Requires the lock.
bool arena_unpark_locked(std::uint64_t block_id, std::vector<physical *> *dead, memory_pool **pool);

// Whether all of these bytes were blocks whose queued frees have not run: work ahead of those may
// use them still. Requires the lock.
bool freed_but_not_yet(CUdeviceptr at, std::size_t bytes);
void forget_parked();  // at a reset

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
