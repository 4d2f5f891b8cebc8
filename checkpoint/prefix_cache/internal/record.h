// What an image or a handoff says of a prefix cache beside its pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stillmap/allocators/kv/sequence_arena.h"
#include "stillmap/checkpoint/prefix_cache/prefix_cache.h"

namespace stillmap::prefix_cache {

// What has to be equal for a block, or a sequence, to lie at the same place of an arena.
struct arena_shape {
  std::uint64_t places = 0, place_tokens = 0, token_bytes = 0, page_bytes = 0;
  std::uint32_t layers = 0, tensors = 0, layers_per_range = 0;
  bool operator==(const arena_shape &) const = default;

  // `places`: how many blocks or sequences; `place_tokens`: tokens of each, at most.
  static arena_shape of(const kv::layout &l, std::size_t places, std::size_t place_tokens);
  std::string text(const char *places_name) const;
};

struct stored_blocks {
  arena_shape shape;
  std::vector<entry> entries;
};

struct stored_sequence {
  kv::sequence_place place;
  std::string key;
};
struct stored_sequences {
  arena_shape shape;
  std::vector<stored_sequence> entries;
};

std::vector<std::byte> encode(const stored_blocks &r);
std::vector<std::byte> encode(const stored_sequences &r);
// Errors: corrupt, not_supported (another version: value, limit).
template <class Record>
result<Record> decode(std::span<const std::byte> from);

}  // namespace stillmap::prefix_cache
