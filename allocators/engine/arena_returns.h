// What comes back to an arena later: blocks that other streams still use, and addresses whose old mapping
// is not undone yet. Only growth uses it, under the growth lock. Internal.
// docs/allocator_streams.md#locks
#pragma once

#include <vector>

#include "stillmap/allocators/engine/extent.h"
#include "stillmap/allocators/engine/pending_frees.h"
#include "stillmap/vmm/stream.h"

namespace stillmap {

struct arena_returns {
  // Addresses whose pages have moved to another arena or left. They stay mapped here until the work
  // queued on the arena's stream has completed.
  struct unmapping_extents {
    std::vector<extent *> extents;
    fence idle;
  };

  pending_frees pending;
  std::vector<unmapping_extents> unmapping;
  fence last_work;  // of a stream that has ended: arena::service
};

}  // namespace stillmap
