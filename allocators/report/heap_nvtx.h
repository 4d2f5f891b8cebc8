// Names the memory of a caching allocator for NVIDIA's tools, through the memory extension of NVTX
// 3. Each reserved address range is a heap with sub-allocations, each block a region in it. A tool
// that supports the extension can tell which block an address is in, and report an access outside
// of all blocks although the driver sees one mapping.
// docs/heap_map.md#statistics-map-and-history
#pragma once

#include <memory>

#include "stillmap/allocators/allocation_history.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap {

// Returns an observer for caching_allocator_options::observer; each allocator needs its own. The
// NVTX domain is "stillmap". NVTX loads the tool that NVTX_INJECTION64_PATH names; the tool sets
// it. Without a tool, the observer unregisters itself at the first event.
//
// A region begins when a block is allocated, and has the requested size. It ends when the memory of
// the block is reusable.
// Requires: a device is open; Compute Sanitizer needs CUDA to be initialised before NVTX.
// Errors:   not_supported (built without NVTX's header nvtx3/nvToolsExtMem.h, which CUDA 13
//           contains).
// Cost:     several calls into the tool for each request. Use it only under a tool.
result<std::shared_ptr<heap_observer>> nvtx_observer();

}  // namespace stillmap
