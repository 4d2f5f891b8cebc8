#include "stillmap/checkpoint/prefix_cache/internal/destination.h"

#include <algorithm>
#include <iterator>

namespace stillmap::prefix_cache {

status check_unused(const kv::block_arena &arena) {
  const kv::block_arena_stats now = arena.stats();
  if (now.used + now.cached == 0) return {};
  return make_error(errc::busy, "the arena has blocks in use: take one that has none",
                    now.used + now.cached, 0, error_unit::items);
}

status check_shape(const kv::block_arena &arena, const arena_shape &shape) {
  const arena_shape here = arena_shape::of(arena);
  if (shape == here) return {};
  const error e =
      make_error(errc::invalid_argument, "the prefix cache is of an arena of another shape")
          .value();
  return tl::unexpected(e.with({.found = shape.text(), .expected = here.text()}));
}

std::vector<kv::block_id> blocks_of(std::span<const entry> entries) {
  std::vector<kv::block_id> out;
  std::transform(entries.begin(), entries.end(), std::back_inserter(out),
                 [](const entry &e) { return e.block; });
  return out;
}

void keep_in_order(kv::block_arena &arena, std::span<const kv::block_id> blocks) {
  for (const kv::block_id &b : blocks) {
    static_cast<void>(arena.release({&b, 1}, kv::block_arena::contents::keep));
  }
}

}  // namespace stillmap::prefix_cache
