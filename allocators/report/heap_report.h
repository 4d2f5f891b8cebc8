// A heap at one moment, written down: as JSON (docs/heap_map.md), and as PyTorch's memory viewer
// reads it (pytorch.org/memory_viz). Pictures: heap_picture.h. Pure: knows no driver.
// docs/design.md#what-the-allocator-says-about-itself
#pragma once

#include <optional>
#include <string>

#include "stillmap/allocators/caching_allocator.h"

namespace stillmap {

struct heap_snapshot {
  std::string device;  // its name, for people
  int ordinal = 0;
  heap_map map;
  std::optional<caching_allocator_stats> stats;
  allocation_history history;  // empty where none was recorded
};

// History, map and figures, taken one after the other: of one moment where nothing allocates or
// frees meanwhile. Errors: not_supported (a forked child), out_of_memory (the host's).
result<heap_snapshot> snapshot_of(const caching_allocator &heap);

// One document. Stacks are named here, in the process that recorded them (describe_frame).
std::string to_json(const heap_snapshot &s);

// The pickle (protocol 2; no imports) of what torch.cuda.memory._snapshot() would return. Each run
// of addresses with memory is a segment. Pages that moved are unmapped at one address and mapped at
// the other; a block waiting for other streams is `active_pending_free`.
std::string to_torch_pickle(const heap_snapshot &s);

}  // namespace stillmap
