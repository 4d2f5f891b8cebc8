// The books of device memory, as the execution side sees them. Thread-safe.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hostcuda {

struct context;

// A run of bytes inside one physical allocation. Two virtual ranges alias exactly when their
// pieces overlap. Ids are never reused.
struct physical_piece {
  std::uint64_t allocation;
  std::size_t offset;
  std::size_t bytes;
};

// Host address of [at, at + bytes) if every byte is live device memory (cuMemAlloc, pool or mapped)
// that `device` may read (and write, if `write`); nullptr otherwise. Registered and managed host
// memory resolve to themselves. In unbacked mode: a non-null pointer that must not be dereferenced;
// see unbacked().
void *resolve(CUdevice device, CUdeviceptr at, std::size_t bytes, bool write);

// The same for who only reads: where the driver has all of it in one piece, the driver's own
// mapping of it, which takes no page faults.
const void *resolve_for_reading(CUdevice device, CUdeviceptr at, std::size_t bytes);

// The physical pieces under a range, in address order; whatever is unmapped is left out.
std::vector<physical_piece> pieces(CUdeviceptr at, std::size_t bytes);

// The other addresses at which bytes of [at, at + bytes) are mapped. The oracle asks for this on
// every enqueue, so it must cost next to nothing while no handle is mapped twice (keep a count of
// handles with more than one mapping and return early when it is zero).
struct virtual_range {
  CUdeviceptr at;
  std::size_t bytes;
};
std::vector<virtual_range> aliases(CUdeviceptr at, std::size_t bytes);

// After a successful host wait (event, stream or context): pools give back what they keep beyond
// their release threshold, as CUDA's do at a synchronisation. Cheap when there is nothing to give.
void memory_synchronised();

// Whether device memory has no bytes behind it: copies and kernels must move nothing.
bool unbacked();

// Frees what was allocated in the context; VMM memory belongs to no context and stays.
void release_context_memory(context *ctx);

// hostcuda_reset, after the streams and contexts are gone.
void reset_memory();

}  // namespace hostcuda
