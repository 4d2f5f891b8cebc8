// Interface of the memory side (src/memory) for the execution side: resolves device addresses and
// finds aliases. Thread-safe.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hostcuda {

struct context;
struct settings;

// A run of bytes inside one physical allocation. Two virtual ranges alias exactly when their
// pieces overlap. Ids are never reused.
struct physical_piece {
  std::uint64_t allocation;
  std::size_t offset;
  std::size_t bytes;
};

// Returns the host address of [at, at + bytes) if every byte is live device memory (cuMemAlloc,
// pool or mapped) that `device` may read (and write, if `write`); otherwise nullptr. Registered and
// managed host memory resolves to itself. In unbacked mode the result must not be dereferenced; see
// unbacked().
void *resolve(CUdevice device, CUdeviceptr at, std::size_t bytes, bool write);

// As resolve() for reading. Returns the driver's own view of the bytes if they are contiguous in
// it, because reading the view takes no page faults.
const void *resolve_for_reading(CUdevice device, CUdeviceptr at, std::size_t bytes);

// The physical pieces under a range, in address order. Unmapped parts are omitted.
std::vector<physical_piece> pieces(CUdeviceptr at, std::size_t bytes);

// The other addresses at which bytes of [at, at + bytes) are mapped. The oracle calls it on every
// enqueue.
// Cost: one atomic load while no handle is mapped more than once.
struct virtual_range {
  CUdeviceptr at;
  std::size_t bytes;
};
std::vector<virtual_range> aliases(CUdeviceptr at, std::size_t bytes);

// Called after a successful host wait (event, stream or context): pools release the memory above
// their release threshold, as in CUDA.
// Cost: one atomic load when no pool has an empty chunk.
void memory_synchronised();

// Whether device memory has no bytes, so that copies and kernels must not access it.
bool unbacked();

// Memory for a variable of GPU code in the current context: zeros, or `initial`, which is empty or
// has `bytes` bytes. It lives until destroy_variable or the end of the context.
// Requires: a current context; `bytes` is not 0.
// Errors:   OUT_OF_MEMORY.
CUresult create_variable(const std::vector<std::byte> &initial, std::size_t bytes,
                         CUdeviceptr *out);
void destroy_variable(CUdeviceptr at, std::size_t bytes, CUdevice device);

// Frees the memory allocated in a context. VMM memory belongs to no context and is not freed.
void release_context_memory(context *ctx);

// Discards all memory. hostcuda_reset() calls it after the streams and contexts are destroyed.
void reset_memory(const settings &next);  // of the machine that follows

}  // namespace hostcuda
