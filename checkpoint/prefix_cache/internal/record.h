// What an image says of a prefix cache beside its pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stillmap/allocators/kv/block_arena.h"
#include "stillmap/checkpoint/prefix_cache/prefix_cache.h"

namespace stillmap::prefix_cache {

// What has to be equal for a block to lie at the same place of an arena.
struct arena_shape {
  std::uint64_t blocks = 0, tokens_per_block = 0, token_bytes = 0, page_bytes = 0;
  std::uint32_t layers = 0, tensors = 0, layers_per_range = 0;
  bool operator==(const arena_shape &) const = default;

  static arena_shape of(const kv::block_arena &arena);
  std::string text() const;
};

struct record {
  arena_shape shape;
  std::vector<entry> entries;
};

std::vector<std::byte> encode(const record &r);
// Errors: corrupt, not_supported (another version: value, limit).
result<record> decode(std::span<const std::byte> from);

}  // namespace stillmap::prefix_cache
