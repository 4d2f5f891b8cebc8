// Who says whether more physical memory may be created. A page pool asks before each page and tells
// when one is gone, so that what is held never exceeds what was granted.
#pragma once

#include <cstdint>

#include "stillmap/vmm/error.h"

namespace stillmap {

// Implementations are called from any thread that grows or frees, never with a lock of ours held
// that they could need.
class memory_quota {
 public:
  virtual ~memory_quota() = default;
  // All of `bytes`, or an error, which the request for memory then fails with.
  virtual status reserve(std::uint64_t bytes) = 0;
  // A failure goes to the error sink: the memory is free all the same.
  virtual status release(std::uint64_t bytes) = 0;
};

}  // namespace stillmap
