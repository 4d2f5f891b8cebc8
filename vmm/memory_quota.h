// Limits the creation of physical memory. A page pool reserves quota before it creates a page and
// releases it after the page is released, so that memory in use never exceeds the reserved quota.
#pragma once

#include <cstdint>

#include "stillmap/vmm/base/error.h"

namespace stillmap {

// Threads: implementations are called from any thread that allocates or frees, and never while a lock
// of Stillmap's is held that they could need. They leave the thread's current context as it was.
class memory_quota {
 public:
  virtual ~memory_quota() = default;
  // Reserves all of `bytes`. On failure the request for memory returns the same error.
  virtual status reserve(std::uint64_t bytes) = 0;
  // A failure is a background error: the memory is released in any case.
  virtual status release(std::uint64_t bytes) = 0;
};

}  // namespace stillmap
