// The arena that a prefix cache comes into.
#pragma once

#include <span>
#include <vector>

#include "stillmap/allocators/kv/block_arena.h"
#include "stillmap/checkpoint/prefix_cache/internal/record.h"

namespace stillmap::prefix_cache {

// Errors: busy (blocks that are used or cached: value).
status check_unused(const kv::block_arena &arena);
// Errors: invalid_argument (detail().found = `shape`, expected = the arena's).
status check_shape(const kv::block_arena &arena, const arena_shape &shape);
std::vector<kv::block_id> blocks_of(std::span<const entry> entries);
// Used blocks are cached from now on, the first ones as those that were used longest ago.
void keep_in_order(kv::block_arena &arena, std::span<const kv::block_id> blocks);

}  // namespace stillmap::prefix_cache
