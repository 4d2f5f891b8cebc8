#include "stillmap/checkpoint/prefix_cache/internal/block_cache.h"

#include <algorithm>
#include <iterator>

#include "stillmap/checkpoint/prefix_cache/internal/page_offsets.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::prefix_cache {
namespace {

std::vector<kv::block_id> blocks_of(std::span<const entry> entries) {
  std::vector<kv::block_id> out;
  std::transform(entries.begin(), entries.end(), std::back_inserter(out),
                 [](const entry &e) { return e.block; });
  return out;
}

}  // namespace

arena_shape block_cache::shape_of(const arena &a) {
  return arena_shape::of(a.layout(), a.blocks(), a.layout().tokens_per_block());
}

result<stored_blocks> block_cache::describe(const arena &a, std::span<const entry> entries) {
  if (!a.settled()) {
    return make_error(errc::busy, "the arena's worker changes its memory: begin_step() first");
  }
  std::vector<bool> seen(a.blocks());
  for (const entry &e : entries) {
    if (!a.has_contents(e.block) || seen[e.block]) {
      return make_error(errc::invalid_argument, "the block is free, or is named twice", e.block);
    }
    seen[e.block] = true;
    STILLMAP_RETURN_IF_ERROR(check_key(e.key));
  }
  return stored_blocks{shape_of(a), {entries.begin(), entries.end()}};
}

status block_cache::check_unused(const arena &a) {
  const kv::block_arena_stats now = a.stats();
  if (now.used + now.cached == 0) return {};
  return make_error(errc::busy, "the arena has blocks in use: take one that has none",
                    now.used + now.cached, 0, error_unit::items);
}

status block_cache::check(const arena &a, const record &r) {
  std::vector<bool> seen(a.blocks());
  for (const entry &e : r.entries) {
    if (e.block >= a.blocks() || seen[e.block]) {
      return make_error(errc::corrupt, "the prefix table names a block twice, or one that is none",
                        e.block, a.blocks());
    }
    seen[e.block] = true;
  }
  return {};
}

std::vector<std::size_t> block_cache::pages_of(const arena &a, const record &r) {
  std::vector<std::size_t> groups;
  for (const entry &e : r.entries) {
    const kv::page_span pages = a.layout().pages_of(e.block, 1);
    for (std::size_t g = pages.first; g < pages.end(); ++g) groups.push_back(g);
  }
  return page_offsets(a.layout(), a.range().bytes, std::move(groups));
}

result<std::vector<entry>> block_cache::claim(arena &a, record r, stream_ref stream) {
  STILLMAP_RETURN_IF_ERROR(a.claim(blocks_of(r.entries), stream));
  return std::move(r.entries);
}

result<std::vector<entry>> block_cache::adopt(arena &a, record r, device_address from) {
  STILLMAP_RETURN_IF_ERROR(a.trim());
  STILLMAP_RETURN_IF_ERROR(a.adopt(blocks_of(r.entries), from));
  return std::move(r.entries);
}

void block_cache::abandon(arena &a, std::span<const entry> entries) {
  for (const entry &e : entries) static_cast<void>(a.release({&e.block, 1}));
}

void block_cache::keep(arena &a, std::span<const entry> entries) {
  for (const entry &e : entries) {
    static_cast<void>(a.release({&e.block, 1}, kv::block_arena::contents::keep));
  }
}

}  // namespace stillmap::prefix_cache
