// Blocks that the program freed while a stream captured a graph, when nothing could be waited for.
#pragma once

#include "stillmap/allocators/caching_allocator.h"

namespace stillmap::preload {

// False: the host has no memory for it.
bool free_later(caching_allocator &heap, void *block) noexcept;

// Frees them. Requires: nothing queued uses them.
void free_pending() noexcept;

bool any_pending() noexcept;

}  // namespace stillmap::preload
