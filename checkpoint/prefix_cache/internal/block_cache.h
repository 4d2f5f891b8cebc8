// What saving and loading a prefix cache ask of a block_arena. sequence_cache.h has the same of a sequence_arena.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "stillmap/allocators/kv/block_arena.h"
#include "stillmap/checkpoint/prefix_cache/internal/record.h"

namespace stillmap::prefix_cache {

struct block_cache {
  using arena = kv::block_arena;
  using entry = prefix_cache::entry;
  using record = stored_blocks;
  static constexpr const char *note = record_note;
  static constexpr const char *places = "blocks";

  static arena_shape shape_of(const arena &a);
  // Errors: busy (begin_step() is missing), invalid_argument (a block that is free, or named twice: value; a key that is
  //         too long: value, limit).
  static result<record> describe(const arena &a, std::span<const entry> entries);
  // Errors: busy (blocks that are used or cached: value).
  static status check_unused(const arena &a);
  // A record from outside, of an arena of this shape. Errors: corrupt.
  static status check(const arena &a, const record &r);
  // Distances of the pages from the beginning of the arena's addresses, each once, in order.
  static std::vector<std::size_t> pages_of(const arena &a, const record &r);

  // Gives the entries memory, in which their contents arrive: as block_arena::claim().
  static result<std::vector<entry>> claim(arena &a, record r, stream_ref stream);
  // As block_arena::adopt().
  static result<std::vector<entry>> adopt(arena &a, record r, device_address from);
  // What was claimed is free again.
  static void abandon(arena &a, std::span<const entry> entries);
  // What was claimed is cached from now on, the first ones as those that were used longest ago.
  static void keep(arena &a, std::span<const entry> entries);
};

}  // namespace stillmap::prefix_cache
