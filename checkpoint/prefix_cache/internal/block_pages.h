// Where the pages are that hold blocks of an arena.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "stillmap/allocators/kv/block_arena.h"
#include "stillmap/checkpoint/prefix_cache/prefix_cache.h"

namespace stillmap::prefix_cache {

// Distances from the beginning of the arena's addresses, each once, in order. Requires: the blocks are the arena's.
std::vector<std::size_t> pages_of(const kv::block_arena &arena, std::span<const entry> entries);

}  // namespace stillmap::prefix_cache
