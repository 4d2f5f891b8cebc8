#include <algorithm>

#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/prefix_cache/internal/block_pages.h"
#include "stillmap/checkpoint/prefix_cache/internal/destination.h"
#include "stillmap/checkpoint/prefix_cache/internal/record.h"
#include "stillmap/checkpoint/prefix_cache/prefix_cache.h"
#include "stillmap/checkpoint/snapshot/restore_contents.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::prefix_cache {
namespace {

result<record> record_of(const image::manifest &m) {
  for (const image::manifest::note &n : m.notes) {
    if (n.name == record_note) return decode(n.bytes);
  }
  return make_error(errc::invalid_argument, "the image has no prefix cache");
}

status check_fits(const kv::block_arena &arena, const record &r, const image::manifest &m) {
  STILLMAP_RETURN_IF_ERROR(check_shape(arena, r.shape));
  if (r.entries.empty()) return {};
  if (m.tags.size() != 1 || m.tags.front() != arena.tag()) {
    const error e =
        make_error(errc::invalid_argument, "the image is of an arena with another tag").value();
    return tl::unexpected(e.with(
        {.found = m.tags.empty() ? std::string() : m.tags.front(), .expected = arena.tag()}));
  }
  return {};
}

// The image has the pages of its blocks, and no others: it may be forged.
status check_pages(const kv::block_arena &arena, const record &r, const image::manifest &m) {
  const auto none = std::find_if(r.entries.begin(), r.entries.end(),
                                 [&](const entry &e) { return e.block >= arena.blocks(); });
  if (none != r.entries.end()) {
    return make_error(errc::corrupt, "the image has a block that its arena has not", none->block,
                      arena.blocks());
  }
  const std::vector<std::size_t> pages = pages_of(arena, r.entries);
  const auto is_at = [&](std::size_t page, const image::manifest::place &p) {
    return p.address - m.blocks.front().begin == page;
  };
  const bool whole =
      r.entries.empty() || (m.blocks.size() == 1 && m.blocks.front().bytes == arena.range().bytes);
  if (whole && std::equal(pages.begin(), pages.end(), m.places.begin(), m.places.end(), is_at)) {
    return {};
  }
  return make_error(errc::corrupt, "the image's pages are not those of its blocks", m.places.size(),
                    pages.size(), error_unit::items);
}

// The blocks are used while their contents arrive.
status fill(kv::block_arena &arena, const image::reader &from, std::span<const kv::block_id> blocks,
            stream_ref stream, const load_options &options) {
  STILLMAP_RETURN_IF_ERROR(arena.claim(blocks, stream));
  snapshot::restore_contents_options how;
  how.verify = false;  // that is done
  how.moved_to = arena.range().begin;
  how.threads = options.threads;
  how.cancel = options.cancel;
  const auto restored = snapshot::restore_contents(arena.device(), from, how);
  if (restored) return {};
  static_cast<void>(arena.release(blocks));
  return tl::unexpected(restored.error());
}

result<std::vector<entry>> load_from(kv::block_arena &arena, const image::reader &from,
                                     stream_ref stream, const load_options &options) {
  STILLMAP_ASSIGN_OR_RETURN(record r, record_of(from.manifest()));
  STILLMAP_RETURN_IF_ERROR(check_fits(arena, r, from.manifest()));
  STILLMAP_RETURN_IF_ERROR(check_pages(arena, r, from.manifest()));
  if (r.entries.empty()) return std::move(r.entries);
  image::verify_options whole;
  whole.threads = static_cast<unsigned>(options.threads);
  whole.cancel = options.cancel;
  STILLMAP_RETURN_IF_ERROR(from.verify(whole));
  const std::vector<kv::block_id> blocks = blocks_of(r.entries);
  STILLMAP_RETURN_IF_ERROR(fill(arena, from, blocks, stream, options));
  keep_in_order(arena, blocks);
  return std::move(r.entries);
}

}  // namespace

result<std::vector<entry>> load(kv::block_arena &arena, const std::string &path, stream_ref stream,
                                const load_options &options) {
  return with_host_memory("prefix_cache::load", [&]() -> result<std::vector<entry>> {
    STILLMAP_RETURN_IF_ERROR(check_unused(arena));
    STILLMAP_ASSIGN_OR_RETURN(const auto from, image::reader::open(path, options.image));
    return checkpoint::in_file(load_from(arena, from, stream, options), path);
  });
}

}  // namespace stillmap::prefix_cache
