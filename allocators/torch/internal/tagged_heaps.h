// Heaps with a tag of their own, for PyTorch's MemPools. PyTorch calls a pool's allocator by two C
// functions without an argument for the pool, so each tag has two functions of its own. Internal.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "stillmap/allocators/torch/internal/torch_heaps.h"

struct CUstream_st;

namespace stillmap::torch_plugin {

inline constexpr std::size_t most_tags = 64;

struct heap_functions {
  // NULL on failure, which PyTorch answers with its own retry and its own OutOfMemoryError.
  void *(*allocate)(ssize_t bytes, int device, CUstream_st *stream);
  // Gives whole pages that are free afterwards back to the device, behind the work that is queued.
  void (*free)(void *block, ssize_t bytes, int device, CUstream_st *stream);
};

// The functions of a tag, which stay valid for ever. The settings count for a tag's first call.
// Errors:  invalid_argument (the tag is empty; there are most_tags tags already: limit),
//          not_supported (a forked child); host memory.
// Threads: safe.
result<heap_functions> functions_of_tag(const settings &given);

// nullptr: functions_of_tag was never called for it.
torch_heaps *heaps_of_tag(const std::string &tag);
// Those of all tags.
std::vector<torch_heaps *> heaps_of_tags();

}  // namespace stillmap::torch_plugin
