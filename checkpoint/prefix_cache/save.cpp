#include "stillmap/checkpoint/prefix_cache/internal/block_cache.h"
#include "stillmap/checkpoint/prefix_cache/internal/sequence_cache.h"
#include "stillmap/checkpoint/prefix_cache/prefix_cache.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::prefix_cache {
namespace {

template <class Cache>
result<image::written> save_cache(const typename Cache::arena &arena,
                                  std::span<const typename Cache::entry> entries,
                                  const std::string &path, const image::write_options &options) {
  STILLMAP_ASSIGN_OR_RETURN(const typename Cache::record r, Cache::describe(arena, entries));
  snapshot::save_options how;
  how.image = options;
  how.notes.push_back({Cache::note, encode(r)});
  const std::size_t room = image::max_note_bytes - how.notes.front().name.size();
  if (how.notes.front().bytes.size() > room) {
    return make_error(errc::invalid_argument,
                      "an image cannot hold as many entries: use shorter keys, or save fewer",
                      how.notes.front().bytes.size(), room, error_unit::bytes);
  }
  how.within.emplace();
  for (const std::size_t at : Cache::pages_of(arena, r)) {
    how.within->push_back({arena.range().begin + at, arena.layout().page_bytes()});
  }
  return snapshot::save(arena.device(), {&arena.tag(), 1}, path, how);
}

}  // namespace

result<image::written> save(const kv::block_arena &arena, std::span<const entry> entries,
                            const std::string &path, const image::write_options &options) {
  return with_host_memory("prefix_cache::save",
                          [&] { return save_cache<block_cache>(arena, entries, path, options); });
}

result<image::written> save(const kv::sequence_arena &arena,
                            std::span<const sequence_entry> entries, const std::string &path,
                            const image::write_options &options) {
  return with_host_memory("prefix_cache::save", [&] {
    return save_cache<sequence_cache>(arena, entries, path, options);
  });
}

}  // namespace stillmap::prefix_cache
