#include "stillmap/checkpoint/prefix_cache/internal/check_entries.h"

#include <vector>

#include "stillmap/vmm/base/try.h"

namespace stillmap::prefix_cache {

status check_entries(const kv::block_arena &arena, std::span<const entry> entries) {
  if (!arena.settled()) {
    return make_error(errc::busy, "the arena's worker changes its memory: begin_step() first");
  }
  std::vector<bool> seen(arena.blocks());
  for (const entry &e : entries) {
    if (!arena.has_contents(e.block) || seen[e.block]) {
      return make_error(errc::invalid_argument, "the block is free, or is named twice", e.block);
    }
    seen[e.block] = true;
    if (e.key.size() > max_key_bytes) {
      return make_error(errc::invalid_argument, "the key is too long", e.key.size(), max_key_bytes,
                        error_unit::bytes);
    }
  }
  return {};
}

}  // namespace stillmap::prefix_cache
