#include "stillmap/checkpoint/prefix_cache/internal/block_pages.h"
#include "stillmap/checkpoint/prefix_cache/internal/check_entries.h"
#include "stillmap/checkpoint/prefix_cache/internal/record.h"
#include "stillmap/checkpoint/prefix_cache/prefix_cache.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::prefix_cache {
result<image::written> save(const kv::block_arena &arena, std::span<const entry> entries,
                            const std::string &path, const image::write_options &options) {
  return with_host_memory("prefix_cache::save", [&]() -> result<image::written> {
    STILLMAP_RETURN_IF_ERROR(check_entries(arena, entries));
    snapshot::save_options how;
    how.image = options;
    how.notes.push_back(
        {record_note, encode({arena_shape::of(arena), {entries.begin(), entries.end()}})});
    const std::size_t room = image::max_note_bytes - how.notes.front().name.size();
    if (how.notes.front().bytes.size() > room) {
      return make_error(errc::invalid_argument,
                        "an image cannot hold as many entries: use shorter keys, or save fewer",
                        how.notes.front().bytes.size(), room, error_unit::bytes);
    }
    how.within.emplace();
    for (const std::size_t at : pages_of(arena, entries)) {
      how.within->push_back({arena.range().begin + at, arena.layout().page_bytes()});
    }
    return snapshot::save(arena.device(), {&arena.tag(), 1}, path, how);
  });
}

}  // namespace stillmap::prefix_cache
