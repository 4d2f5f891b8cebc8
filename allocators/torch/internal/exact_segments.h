// Large tensors in pools. Internal.
//
// PyTorch's native allocator asks a pool's allocator for segments of whole 2 MiB, and keeps those without a
// tensor for requests of the same size or less: weights that are replaced by slightly larger ones hold twice
// their memory. So a tensor of 10 MiB or more that is allocated in a pool's context gets a private pool of
// PyTorch's for itself, which nothing else is served from: its segment has exactly its size, and ends with
// it. Smaller tensors share segments, by PyTorch's rules.
//
// PyTorch does not say when a segment has lost its tensor. It is asked each time after 1/32 of what there is
// has been requested, and when a context ends.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "stillmap/vmm/base/error.h"

namespace stillmap::torch_plugin {

using mempool_id = std::pair<unsigned long long, unsigned long long>;

// What one thread, or all, allocate on a device belongs to a pool from now on. Call it before PyTorch begins
// to allocate to the pool, and the other after PyTorch has ended that.
// allocator: the pool's CUDAPluggableAllocator, which lives for ever.
// Errors:  not_supported (this version of PyTorch has other functions; PyTorch's rules hold for all sizes).
// Threads: safe.
status begin_exact(mempool_id pool, int device, void *allocator, bool all_threads);
void end_exact(mempool_id pool, int device);

// Gives segments without a tensor back to their heaps. Does nothing while a graph is captured.
void release_exact();
// PyTorch's private pools for tensors of this pool.
std::vector<mempool_id> exact_pools_of(mempool_id pool);
// The size of an exact segment; 0: none begins there.
std::size_t exact_bytes_at(const void *address);

// For a heap's functions: the size of the segment that this thread asks PyTorch for, at most `bytes`.
std::size_t exact_request(std::size_t bytes);
void note_exact(const void *segment, std::size_t bytes) noexcept;
// Whether it was one.
bool forget_exact(const void *segment);
// Whether this thread is in release_exact() within a context, so that more requests are likely.
bool releasing_exact();

}  // namespace stillmap::torch_plugin
