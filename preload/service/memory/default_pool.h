// The default memory pool of a device: what is allocated from it, Stillmap serves. Other pools are the driver's.
#pragma once

#include "preload/functions/abi.h"
#include "stillmap/allocators/caching_allocator.h"

namespace stillmap::preload {

// The allocator that stands for a pool; nullptr: it is not the default pool of the current device.
caching_allocator *heap_of_pool(word pool) noexcept;

}  // namespace stillmap::preload
