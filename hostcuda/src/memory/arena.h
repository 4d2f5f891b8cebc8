// Suballocator: carves blocks out of 2 MiB chunks of device memory. cuMemAlloc uses one arena per
// device; each memory pool has its own.
#pragma once

#include <map>
#include <set>
#include <unordered_map>

#include "hostcuda/src/execution.h"
#include "hostcuda/src/memory/memory_state.h"

namespace hostcuda {

// Bytes with a queued free that has not run yet. Work that is ordered after the free may reuse
// them.
struct parked_piece {
  std::size_t bytes = 0;
  std::uint64_t tick = 0;  // of the last free in this range
};
// Parked ranges of one stream.
struct parked_line {
  std::map<CUdeviceptr, parked_piece> at;  // a range lies in one chunk
  std::set<std::pair<std::size_t, CUdeviceptr>> by_size;
  std::set<std::pair<std::uint64_t, CUdeviceptr>> by_tick;
};

struct arena {
  int location = 0;
  memory_pool *pool = nullptr;      // the pool that owns the arena, or nullptr
  std::shared_ptr<pool_file> file;  // of a shareable or imported pool, or nullptr
  bool keeps_empty = false;         // pools keep chunks without blocks until they are trimmed
  std::size_t reserved = 0;         // bytes of its chunks
  std::size_t used = 0;             // bytes of its blocks after rounding
  std::size_t limit = 0;            // maximum of `reserved`, a multiple of kGranularity; 0: none
  std::size_t growing = 0;          // bytes of chunks that are being created
  std::size_t reserved_high = 0;
  std::size_t used_high = 0;
  std::set<CUdeviceptr> chunks;
  std::map<CUdeviceptr, std::size_t> free_at;                  // a range lies in one chunk
  std::set<std::pair<std::size_t, CUdeviceptr>> free_by_size;  // for best fit
  std::unordered_map<std::uint64_t, parked_line> parked;       // by stream
  std::size_t frees_queued = 0;                                // queued frees that have not run
};

// Allocates and registers a block. `proto` has the fields that the caller sets.
// `order` is the order of the stream that the block is for; nullptr: reuses no parked bytes.
// `follows`: also reuses bytes that other streams freed before an operation this stream waits for.
// Requires: the lock is not held.
// Errors:   OUT_OF_MEMORY.
CUresult arena_allocate(arena *a, std::size_t bytes, const block &proto, CUdeviceptr *out,
                        const stream_order *order = nullptr, bool follows = false);

// Registers an imported block: mapped memory, with the block at `offset` in it. The memory goes with
// the block. Requires the lock.
CUdeviceptr arena_adopt_locked(arena *a, physical *memory, void *at, std::size_t offset,
                               std::size_t bytes, const block &proto);

// Parks a block with a free that is queued at `place`: removes the block and makes its bytes
// available to work that is ordered after the free. Requires the lock.
void arena_park_locked(std::map<CUdeviceptr, block>::iterator it, const place_in_time &place);
bool arena_is_parked_locked(std::uint64_t block_id);
// Called when a queued free runs: makes the bytes that it and earlier frees of its stream parked
// available to all. Returns false if the block was not parked. Requires the lock.
bool arena_unpark_locked(std::uint64_t block_id, dead_memory *dead, memory_pool **pool);

// Whether all of these bytes are parked. Work that precedes the queued frees may still access them.
// Requires the lock.
bool freed_but_not_yet(CUdeviceptr at, std::size_t bytes);
// Discards all parked ranges, for a reset.
void forget_parked();

// Removes a block and appends the memory of empty chunks to `dead`. Requires the lock.
void arena_free_locked(std::map<CUdeviceptr, block>::iterator it, dead_memory *dead);

// Appends the memory of empty chunks to `dead` until at most `keep` bytes are reserved. Requires
// the lock.
void arena_trim_locked(arena *a, std::size_t keep, dead_memory *dead);

// Records that a pool has an empty chunk, so that the next synchronisation trims the pools.
void pool_has_an_empty_chunk();

// Releases the unused chunks of all pools of the device. Requires: the lock is not held.
void trim_every_pool(int location);

// The access rights of a pool's memory.
access_bits pool_access(const memory_pool *pool);

}  // namespace hostcuda
