#include <algorithm>

#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/prefix_cache/internal/block_cache.h"
#include "stillmap/checkpoint/prefix_cache/internal/destination.h"
#include "stillmap/checkpoint/prefix_cache/internal/sequence_cache.h"
#include "stillmap/checkpoint/prefix_cache/prefix_cache.h"
#include "stillmap/checkpoint/snapshot/restore_contents.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::prefix_cache {
namespace {

template <class Cache>
result<typename Cache::record> record_of(const image::manifest &m) {
  for (const image::manifest::note &n : m.notes) {
    if (n.name == Cache::note) return decode<typename Cache::record>(n.bytes);
  }
  const error e = make_error(errc::invalid_argument, "the image has no prefix cache").value();
  return tl::unexpected(e.with({.expected = std::string("a prefix cache of ") + Cache::places}));
}

template <class Arena>
status check_tag(const Arena &arena, const image::manifest &m) {
  if (m.tags.size() == 1 && m.tags.front() == arena.tag()) return {};
  const error e =
      make_error(errc::invalid_argument, "the image is of an arena with another tag").value();
  return tl::unexpected(
      e.with({.found = m.tags.empty() ? std::string() : m.tags.front(), .expected = arena.tag()}));
}

// The image has these pages, and no others: it may be forged.
template <class Arena>
status check_pages(const Arena &arena, const std::vector<std::size_t> &pages,
                   const image::manifest &m) {
  const auto is_at = [&](std::size_t page, const image::manifest::place &p) {
    return p.address - m.blocks.front().begin == page;
  };
  const bool whole =
      pages.empty() || (m.blocks.size() == 1 && m.blocks.front().bytes == arena.range().bytes);
  if (whole && std::equal(pages.begin(), pages.end(), m.places.begin(), m.places.end(), is_at)) {
    return {};
  }
  return make_error(errc::corrupt, "the image's pages are not those of its entries",
                    m.places.size(), pages.size(), error_unit::items);
}

// The entries are in use while their contents arrive.
template <class Cache>
result<std::vector<typename Cache::entry>> fill(typename Cache::arena &arena,
                                                const image::reader &from, typename Cache::record r,
                                                stream_ref stream, const load_options &options) {
  STILLMAP_ASSIGN_OR_RETURN(auto entries, Cache::claim(arena, std::move(r), stream));
  snapshot::restore_contents_options how;
  how.verify = false;  // that is done
  how.moved_to = arena.range().begin;
  how.threads = options.threads;
  how.cancel = options.cancel;
  const auto restored = snapshot::restore_contents(arena.device(), from, how);
  if (restored) {
    Cache::keep(arena, entries);
    return entries;
  }
  Cache::abandon(arena, entries);
  return tl::unexpected(restored.error());
}

template <class Cache>
result<std::vector<typename Cache::entry>> load_from(typename Cache::arena &arena,
                                                     const image::reader &from, stream_ref stream,
                                                     const load_options &options) {
  const image::manifest &m = from.manifest();
  STILLMAP_ASSIGN_OR_RETURN(typename Cache::record r, record_of<Cache>(m));
  STILLMAP_RETURN_IF_ERROR(check_fits<Cache>(arena, r));
  if (!r.entries.empty()) STILLMAP_RETURN_IF_ERROR(check_tag(arena, m));
  const std::vector<std::size_t> pages = Cache::pages_of(arena, r);
  STILLMAP_RETURN_IF_ERROR(check_pages(arena, pages, m));
  if (pages.empty()) return Cache::claim(arena, std::move(r), stream);
  image::verify_options whole;
  whole.threads = static_cast<unsigned>(options.threads);
  whole.cancel = options.cancel;
  STILLMAP_RETURN_IF_ERROR(from.verify(whole));
  return fill<Cache>(arena, from, std::move(r), stream, options);
}

template <class Cache>
result<std::vector<typename Cache::entry>> load_cache(typename Cache::arena &arena,
                                                      const std::string &path, stream_ref stream,
                                                      const load_options &options) {
  STILLMAP_RETURN_IF_ERROR(Cache::check_unused(arena));
  STILLMAP_ASSIGN_OR_RETURN(const auto from, image::reader::open(path, options.image));
  return checkpoint::in_file(load_from<Cache>(arena, from, stream, options), path);
}

}  // namespace

result<std::vector<entry>> load(kv::block_arena &arena, const std::string &path, stream_ref stream,
                                const load_options &options) {
  return with_host_memory("prefix_cache::load",
                          [&] { return load_cache<block_cache>(arena, path, stream, options); });
}

result<std::vector<sequence_entry>> load(kv::sequence_arena &arena, const std::string &path,
                                         stream_ref stream, const load_options &options) {
  return with_host_memory("prefix_cache::load",
                          [&] { return load_cache<sequence_cache>(arena, path, stream, options); });
}

}  // namespace stillmap::prefix_cache
