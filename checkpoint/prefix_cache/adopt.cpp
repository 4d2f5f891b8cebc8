#include <algorithm>

#include "stillmap/checkpoint/prefix_cache/internal/destination.h"
#include "stillmap/checkpoint/prefix_cache/internal/record_memory.h"
#include "stillmap/checkpoint/prefix_cache/prefix_cache.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::prefix_cache {
namespace {

// The other process may have sent anything.
status check_blocks(const kv::block_arena &arena, std::span<const kv::block_id> blocks) {
  std::vector<bool> seen(arena.blocks());
  for (const kv::block_id b : blocks) {
    if (b >= arena.blocks() || seen[b]) {
      return make_error(errc::corrupt, "the prefix table names a block twice, or one that is none",
                        b, arena.blocks());
    }
    seen[b] = true;
  }
  return {};
}

}  // namespace

result<std::vector<entry>> adopt(kv::block_arena &arena, const checkpoint::restored_memory &from) {
  return with_host_memory("prefix_cache::adopt", [&]() -> result<std::vector<entry>> {
    STILLMAP_RETURN_IF_ERROR(check_unused(arena));
    if (from.device().ordinal() != arena.device().ordinal()) {
      return make_error(errc::invalid_argument, "the memory is another device's",
                        static_cast<std::uint64_t>(from.device().ordinal()));
    }
    STILLMAP_ASSIGN_OR_RETURN(record r, read_record(from, table_tag(arena.tag())));
    STILLMAP_RETURN_IF_ERROR(check_shape(arena, r.shape));
    const std::vector<virtual_range> pages = from.tagged(arena.tag());
    if (pages.size() != 1 || pages.front().bytes != arena.range().bytes) {
      return make_error(errc::corrupt, "the memory of the arena is not as large as its shape says",
                        pages.empty() ? 0 : pages.front().bytes, arena.range().bytes,
                        error_unit::bytes);
    }
    const std::vector<kv::block_id> blocks = blocks_of(r.entries);
    STILLMAP_RETURN_IF_ERROR(check_blocks(arena, blocks));
    STILLMAP_RETURN_IF_ERROR(arena.trim());
    STILLMAP_RETURN_IF_ERROR(arena.adopt(blocks, pages.front().begin));
    keep_in_order(arena, blocks);
    return std::move(r.entries);
  });
}

}  // namespace stillmap::prefix_cache
