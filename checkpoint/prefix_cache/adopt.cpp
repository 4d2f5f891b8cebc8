#include "stillmap/checkpoint/prefix_cache/internal/block_cache.h"
#include "stillmap/checkpoint/prefix_cache/internal/destination.h"
#include "stillmap/checkpoint/prefix_cache/internal/record_memory.h"
#include "stillmap/checkpoint/prefix_cache/internal/sequence_cache.h"
#include "stillmap/checkpoint/prefix_cache/prefix_cache.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::prefix_cache {
namespace {

template <class Cache>
result<std::vector<typename Cache::entry>> adopt_cache(typename Cache::arena &arena,
                                                       const checkpoint::restored_memory &from) {
  STILLMAP_RETURN_IF_ERROR(Cache::check_unused(arena));
  if (from.device().ordinal() != arena.device().ordinal()) {
    return make_error(errc::invalid_argument, "the memory is another device's",
                      static_cast<std::uint64_t>(from.device().ordinal()));
  }
  STILLMAP_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes,
                            read_record(from, table_tag(arena.tag())));
  // The other process may have sent anything.
  STILLMAP_ASSIGN_OR_RETURN(typename Cache::record r, decode<typename Cache::record>(bytes));
  STILLMAP_RETURN_IF_ERROR(check_fits<Cache>(arena, r));
  const std::vector<virtual_range> pages = from.tagged(arena.tag());
  if (pages.size() != 1 || pages.front().bytes != arena.range().bytes) {
    return make_error(errc::corrupt, "the memory of the arena is not as large as its shape says",
                      pages.empty() ? 0 : pages.front().bytes, arena.range().bytes,
                      error_unit::bytes);
  }
  STILLMAP_ASSIGN_OR_RETURN(auto entries, Cache::adopt(arena, std::move(r), pages.front().begin));
  Cache::keep(arena, entries);
  return entries;
}

}  // namespace

result<std::vector<entry>> adopt(kv::block_arena &arena, const checkpoint::restored_memory &from) {
  return with_host_memory("prefix_cache::adopt",
                          [&] { return adopt_cache<block_cache>(arena, from); });
}

result<std::vector<sequence_entry>> adopt(kv::sequence_arena &arena,
                                          const checkpoint::restored_memory &from) {
  return with_host_memory("prefix_cache::adopt",
                          [&] { return adopt_cache<sequence_cache>(arena, from); });
}

}  // namespace stillmap::prefix_cache
