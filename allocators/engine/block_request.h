// A request to an arena. Internal.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stillmap/allocators/engine/slab.h"

namespace stillmap {

// `bytes` is rounded up to granules; `slack` is the rounding.
struct block_request {
  std::uint64_t bytes = 0;
  std::uint64_t alignment = allocation_granule;
  std::uint16_t slack = 0;

  bool small() const { return bytes <= slab::largest_block && alignment == allocation_granule; }
  bool plainly_aligned() const { return alignment == allocation_granule; }
  // The extent that must be found to serve it: of its own size, or for a slab.
  block_request extent_request() const {
    if (!small()) return *this;
    return {bytes * slab::blocks_in(static_cast<std::size_t>(bytes)), allocation_granule, 0};
  }
};

}  // namespace stillmap
