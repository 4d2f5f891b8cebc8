// The memory of PyTorch's allocator on one device, as a snapshot has it, and what it was before: events
// of the history are undone from the last to the first.
#pragma once

#include <cstdint>
#include <map>

#include "stillmap/allocators/trace/trace.h"

namespace stillmap::replay {

enum class torch_action : std::uint8_t { alloc, free_requested, free_completed, map, unmap, oom };

struct torch_event {
  torch_action action = torch_action::alloc;
  std::uint64_t at = 0;  // the address; oom: bytes of device memory that were free
  std::uint64_t bytes = 0, stream = 0;
};

class torch_heap {
 public:
  // Device memory that is mapped: a segment, or a part of one that can be expanded.
  void add_memory(std::uint64_t at, std::uint64_t bytes);
  // A block that is in use, or whose free is not complete.
  void add_block(std::uint64_t at, std::uint64_t bytes) { blocks_[at] = bytes; }
  void undo(const torch_event &e);

  // The rest of a large block, which events do not have, counts as free where free memory follows it.
  // Cost: proportional to all memory and blocks.
  trace_failure state(std::uint64_t device_free) const;

 private:
  void remove_memory(std::uint64_t at, std::uint64_t bytes);

  std::map<std::uint64_t, std::uint64_t> memory_, blocks_;  // address: bytes
};

}  // namespace stillmap::replay
