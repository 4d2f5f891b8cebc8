// Where an allocator gets memory from, and what returns it: pages that are mapped, or chunks of cuMemAlloc where the
// device cannot map pages. Internal. docs/allocator_growth.md
#pragma once

#include <cstddef>

#include "stillmap/allocators/allocator_types.h"
#include "stillmap/allocators/engine/arena.h"
#include "stillmap/allocators/engine/growth_lock.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap {

// Which memory a growth may use; each level includes the ones before it.
enum class effort {
  ordinary,  // free memory of idle streams, and new memory within the limits
  all,       // all free memory; the stream waits for the stream that used it last
  waiting,   // and where a stream cannot wait, the host does
};

// Requires of all calls but created_ahead: relaxed_capture_mode, since events are queried.
class memory_source {
 public:
  memory_source() = default;
  memory_source(const memory_source &) = delete;
  virtual ~memory_source() = default;

  // An extent with memory for the request, never nullptr: all of it, or nothing. May run out of host memory.
  // Requires: the device's context is current.
  virtual result<extent *> extend(arena &a, const block_request &r, effort level)
      STILLMAP_REQUIRES(growth) = 0;
  // What the latest extend() could not create, because the device or the quota has no more. Bytes; 0: it failed for
  // another reason, or did not.
  virtual std::size_t missing_bytes() const STILLMAP_REQUIRES(growth) = 0;
  // The block where the request went before, once memory that others borrowed is back there. nullptr: there is no
  // such place. May run out of host memory.
  virtual void *allocate_at_lent(arena &a, const block_request &r) STILLMAP_REQUIRES(growth) = 0;
  // Addresses have run out: undoes mappings that nothing needs.
  virtual void free_addresses() STILLMAP_REQUIRES(growth) = 0;
  // Returns free memory beyond `keep` bytes to the device.
  virtual result<release_report> trim(std::size_t keep) STILLMAP_REQUIRES(growth) = 0;
  // What trim(0) could return now of one arena.
  virtual std::size_t releasable_bytes(arena &a) STILLMAP_REQUIRES(growth) = 0;
  // Returns everything: the allocator ends.
  virtual void release_all() noexcept STILLMAP_REQUIRES(growth) = 0;
  // Bytes that are ready for the next growth. Threads: any.
  virtual std::size_t created_ahead() const = 0;
};

}  // namespace stillmap
