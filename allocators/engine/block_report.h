// Facts about blocks, for heap maps and history. Not on the fast path. Internal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "stillmap/allocators/engine/block_store.h"
#include "stillmap/allocators/heap_map.h"

namespace stillmap {

struct block_facts {
  std::size_t usable = 0;  // 0: not allocated
  std::size_t requested = 0;
  bool cross_stream = false;
};

block_facts facts_of(const block_store &blocks, std::uint64_t address);
// Of a block that is freed and pending, whose other streams have passed.
block_facts facts_of_pending(const block_store &blocks, std::uint64_t address);
// The allocated block in which an address of the arena's memory lies, in its size as requested.
std::optional<virtual_range> block_around(const block_store &blocks, std::uint64_t address);
// Appends each extent, or for a slab each of its blocks. May run out of host memory.
void describe(const block_store &blocks, std::vector<heap_extent> &out);

}  // namespace stillmap
