// What saving and loading a prefix cache ask of a sequence_arena. block_cache.h has the same of a block_arena.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "stillmap/allocators/kv/sequence_arena.h"
#include "stillmap/checkpoint/prefix_cache/internal/record.h"

namespace stillmap::prefix_cache {

struct sequence_cache {
  using arena = kv::sequence_arena;
  using entry = sequence_entry;
  using record = stored_sequences;
  static constexpr const char *note = sequence_record_note;
  static constexpr const char *places = "sequences";

  static arena_shape shape_of(const arena &a);
  // Finds what the sequences share.
  // Errors: busy (begin_step() is missing), invalid_argument (no such sequence, or named twice: value = its slot; more
  //         tokens than have memory: value, limit; tokens that end in a page which another entry has, too: value; a key
  //         that is too long: value, limit).
  static result<record> describe(const arena &a, std::span<const entry> entries);
  // Errors: busy (there are sequences: value).
  static status check_unused(const arena &a);
  // A record from outside, of an arena of this shape. Errors: corrupt.
  static status check(const arena &a, const record &r);
  // Distances of the pages from the beginning of the arena's addresses, in order.
  static std::vector<std::size_t> pages_of(const arena &a, const record &r);

  // Makes the sequences, in whose memory their contents arrive: as sequence_arena::claim().
  static result<std::vector<entry>> claim(arena &a, record r, stream_ref stream);
  // As sequence_arena::adopt().
  static result<std::vector<entry>> adopt(arena &a, record r, device_address from);
  static void abandon(arena &a, std::span<const entry> entries);
  static void keep(arena &, std::span<const entry>) {}  // they are as any
};

}  // namespace stillmap::prefix_cache
