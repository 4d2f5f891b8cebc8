// Whether entries can be saved or sent.
#pragma once

#include <span>

#include "stillmap/allocators/kv/block_arena.h"
#include "stillmap/checkpoint/prefix_cache/prefix_cache.h"

namespace stillmap::prefix_cache {

// Errors: busy (begin_step() is missing), invalid_argument (a block that is free, or named twice: value; a key that is
//         too long: value, limit).
status check_entries(const kv::block_arena &arena, std::span<const entry> entries);

}  // namespace stillmap::prefix_cache
