// What the allocators of this process have on a device, for the operator who looks at it. Uses no object of Python.
#pragma once

#include <memory>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/checkpoint/control/requests.h"

namespace stillmap::python {

// An allocator to be counted as long as it exists. May throw std::bad_alloc.
void count_allocator(const std::shared_ptr<caching_allocator> &heap);

// Of those, and of PyTorch's. A limit is known where there is one allocator. Threads: safe; without the GIL. May throw
// std::bad_alloc.
control::memory_figures memory_figures_of(int ordinal);

}  // namespace stillmap::python
