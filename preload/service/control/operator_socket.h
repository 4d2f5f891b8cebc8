// The operator's socket of each device that the program allocates on, if STILLMAP_PRELOAD_CONTROL asks for it.
// docs/control.md
#pragma once

#include "stillmap/allocators/caching_allocator.h"

namespace stillmap::preload {

// Serves requests about the memory of a device from now on, until the process ends. Where that is impossible, the
// program runs without, and stderr says why.
void serve_operator(const caching_allocator &heap) noexcept;

}  // namespace stillmap::preload
