// Copies between devices in PyTorch. Internal.
//
// PyTorch's allocator copies by cudaMemcpyAsync, which reaches mapped pages of another device only where
// access was given (c10/cuda/CUDACachingAllocator.h, memcpyAsync). cudaMemcpyPeerAsync reaches them
// everywhere, by way of the host if it must; PyTorch takes it for its own expandable segments, and has no
// setter for other allocators.
#pragma once

#include "stillmap/vmm/base/error.h"

namespace stillmap::torch_plugin {

// Of the allocator object that PyTorch uses from now on. A second call does nothing more.
// all_peers: whether devices that can access each other's memory may access all of Stillmap's; false counts
// for all calls. Where they may, and PyTorch has enabled it, copies are as before.
// Errors:  not_supported (PyTorch is not loaded, or its version has another such function).
// Threads: safe; PyTorch's may copy meanwhile.
status route_copies(bool all_peers);

}  // namespace stillmap::torch_plugin
