// The default memory pool of a device: what is allocated from it, Stillmap serves. Other pools are the driver's.
#pragma once

#include "preload/functions/abi.h"
#include "stillmap/allocators/caching_allocator.h"

namespace stillmap::preload {

// The allocator that stands for a pool; nullptr: it is not the default pool of the current device.
caching_allocator *heap_of_pool(word pool) noexcept;

// How many of the bytes that the allocator holds the default pool reserves, as the driver's own pool would: those that
// are live, and what is free up to the release threshold that the program has set. cuMemGetInfo counts them as used.
// Two driver calls.
std::uint64_t reserved_of_pool(caching_allocator &heap, std::uint64_t live,
                               std::uint64_t committed) noexcept;

}  // namespace stillmap::preload
