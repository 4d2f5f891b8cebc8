// Names the memory of a caching allocator for NVIDIA's tools, through the memory extension of NVTX
// 3: what is reserved for a stream is a heap with sub-allocations, every block in it a region. A
// tool that knows the extension can then say which block an address is in, and that an access was
// outside of all blocks, though the driver sees one mapping.
// docs/design.md#what-the-allocator-says-about-itself
#pragma once

#include <memory>

#include "stillmap/allocators/allocation_history.h"
#include "stillmap/vmm/error.h"

namespace stillmap {

// For caching_allocator_options::observer; one for each allocator. The domain is "stillmap". The
// tool is the one that NVTX finds at run time (NVTX_INJECTION64_PATH, set by the tool); where there
// is none, the first event finds that out and the allocator is as fast as without.
// A region begins when a block is handed out and has the bytes that were asked for; it ends when
// its memory is reusable. A request costs calls of the tool: do not use it but under one.
//
// Requires: a device is open already: Compute Sanitizer wants CUDA to be there before NVTX.
// Errors:   not_supported (built without NVTX's header nvtx3/nvToolsExtMem.h, which is among those
//           of CUDA 13).
result<std::shared_ptr<heap_observer>> nvtx_observer();

}  // namespace stillmap
