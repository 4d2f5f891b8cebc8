#include <algorithm>
#include <array>

#include "stillmap/checkpoint/prefix_cache/internal/block_cache.h"
#include "stillmap/checkpoint/prefix_cache/internal/record_memory.h"
#include "stillmap/checkpoint/prefix_cache/internal/sequence_cache.h"
#include "stillmap/checkpoint/prefix_cache/prefix_cache.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::prefix_cache {
namespace {

// All memory with the arena's tag goes.
status check_alone(const device &d, const std::string &tag) {
  const std::vector<block_record> all = d.space().blocks();
  const auto n =
      std::count_if(all.begin(), all.end(), [&](const block_record &b) { return b.tag == tag; });
  if (n == 1) return {};
  return make_error(errc::busy, "other memory has the arena's tag: give the arena one of its own",
                    static_cast<std::uint64_t>(n), 1, error_unit::items);
}

template <class Cache>
result<handoff::sent_memory> send_cache(typename Cache::arena &arena,
                                        std::span<const typename Cache::entry> entries,
                                        handoff::connection &to,
                                        const handoff::handoff_options &options) {
  STILLMAP_ASSIGN_OR_RETURN(const typename Cache::record r, Cache::describe(arena, entries));
  STILLMAP_RETURN_IF_ERROR(check_alone(arena.device(), arena.tag()));
  const std::array<std::string, 2> tags = {arena.tag(), table_tag(arena.tag())};
  STILLMAP_ASSIGN_OR_RETURN(const growable_buffer table,
                            write_record(arena.device(), tags[1], encode(r)));
  STILLMAP_RETURN_IF_ERROR(arena.trim());
  return handoff::send(arena.device(), to, tags, options);
}

}  // namespace

std::string table_tag(const std::string &arena_tag) {
  return arena_tag + " prefix table";
}

result<handoff::sent_memory> send(kv::block_arena &arena, std::span<const entry> entries,
                                  handoff::connection &to,
                                  const handoff::handoff_options &options) {
  return with_host_memory("prefix_cache::send",
                          [&] { return send_cache<block_cache>(arena, entries, to, options); });
}

result<handoff::sent_memory> send(kv::sequence_arena &arena,
                                  std::span<const sequence_entry> entries, handoff::connection &to,
                                  const handoff::handoff_options &options) {
  return with_host_memory("prefix_cache::send",
                          [&] { return send_cache<sequence_cache>(arena, entries, to, options); });
}

}  // namespace stillmap::prefix_cache
