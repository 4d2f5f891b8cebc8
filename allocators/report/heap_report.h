// Writes the state of a heap as JSON (docs/heap_map.md) and as the pickle that PyTorch's memory
// viewer reads (pytorch.org/memory_viz). heap_picture.h draws it. Uses no driver.
// docs/heap_map.md
#pragma once

#include <optional>
#include <string>

#include "stillmap/allocators/caching_allocator.h"

namespace stillmap {

struct heap_snapshot {
  std::string device;  // the device's name
  int ordinal = 0;
  heap_map map;
  std::optional<caching_allocator_stats> stats;
  allocation_history history;  // empty if none was recorded
};

// Copies history, map and statistics, one after the other. They describe one moment if no thread
// allocates or frees meanwhile.
// Errors: not_supported (in a forked child), out_of_memory (host memory).
result<heap_snapshot> snapshot_of(const caching_allocator &heap);

// Returns one JSON document. Call stacks are symbolised here, so call it in the process that
// recorded them (describe_frame).
// Errors: out_of_memory (host memory).
result<std::string> to_json(const heap_snapshot &s);

// Returns what torch.cuda.memory._snapshot() would return, as a pickle (protocol 2, no imports).
// Each contiguous range with memory is a segment. A page that moved is unmapped at one address and
// mapped at the other; a block that other streams may still use is `active_pending_free`.
// Errors: out_of_memory (host memory).
result<std::string> to_torch_pickle(const heap_snapshot &s);

}  // namespace stillmap
