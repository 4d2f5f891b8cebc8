#include <algorithm>
#include <cstdint>
#include <utility>

#include "stillmap/checkpoint/base/parallel_for.h"
#include "stillmap/checkpoint/common/wait_idle.h"
#include "stillmap/checkpoint/snapshot/internal/device_contents.h"
#include "stillmap/checkpoint/snapshot/layout_manifest.h"
#include "stillmap/checkpoint/snapshot/save_operation.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::snapshot {
namespace {

using checkpoint::memory_layout;

// Leaves out the pages that are mapped outside of these ranges, and blocks without any.
void keep_within(memory_layout &l, std::span<const virtual_range> ranges) {
  constexpr std::uint32_t left_out = UINT32_MAX;
  std::vector<std::uint32_t> renumbered(l.pages.size(), left_out);
  std::vector<memory_layout::page> pages;
  auto range = ranges.begin();
  std::erase_if(l.places, [&](memory_layout::place &p) {
    while (range != ranges.end() && range->end() <= p.at) ++range;
    if (range == ranges.end() || !range->contains(p.at)) return true;
    std::uint32_t &page = renumbered[p.page];
    if (page == left_out) {
      page = static_cast<std::uint32_t>(pages.size());
      pages.push_back(l.pages[p.page]);
    }
    p.page = page;
    return false;
  });
  l.pages = std::move(pages);
  std::erase_if(l.blocks, [&](const memory_layout::block &b) {
    const auto first = std::lower_bound(
        l.places.begin(), l.places.end(), b.range.begin,
        [](const memory_layout::place &p, device_address at) { return p.at < at; });
    return first == l.places.end() || !b.range.contains(first->at);
  });
}

}  // namespace

result<save_operation> save_operation::create(
    const device &d, std::span<const std::string> tags,
    const std::vector<image::manifest::note> &notes, checkpoint::published_memory_is published,
    const std::optional<std::vector<virtual_range>> &within) {
  const operation_scope scope("save_operation::create");
  const auto is_ours = [](const auto &n) { return n.name == published_note; };
  if (std::any_of(notes.begin(), notes.end(), is_ours)) {
    return tl::unexpected(make_error(errc::invalid_argument, "the name of a note is reserved")
                              .value()
                              .with({.found = published_note}));
  }
  STILLMAP_ASSIGN_OR_RETURN(auto lease,
                            checkpoint::tag_lease::take(d, tags, checkpoint::lease_kind::shared));
  STILLMAP_ASSIGN_OR_RETURN(
      auto memory,
      checkpoint::describe(d, tags, {}, published, checkpoint::peer_access_is::left_out));
  if (within) keep_within(memory.layout, *within);
  image::manifest what = manifest_of(d, memory.layout);
  what.notes.insert(what.notes.end(), notes.begin(), notes.end());
  return save_operation(d, std::move(lease), std::move(memory.layout), std::move(what));
}

result<image::written> save_operation::write(const std::string &path,
                                             const image::write_options &options) {
  const operation_scope scope("save_operation::write");
  const unsigned threads = checkpoint::threads_for(options.threads, layout_.pages.size());
  STILLMAP_ASSIGN_OR_RETURN(const auto contents,
                            device_contents::create(device_, layout_, threads));
  if (options.parent) {
    contents->prefetch_digests(
        device_,
        options.chunk_bytes != 0 ? options.chunk_bytes : options.parent->superblock().chunk_bytes,
        options.parent->digest_key());
  }
  return image::write(path, manifest_, *contents, options);
}

result<image::written> save(const device &d, std::span<const std::string> tags,
                            const std::string &path, const save_options &options) {
  return with_host_memory("snapshot::save", [&]() -> result<image::written> {
    STILLMAP_RETURN_IF_ERROR(checkpoint::wait_until_idle(d, options.idle));
    STILLMAP_ASSIGN_OR_RETURN(
        auto memory,
        save_operation::create(d, tags, options.notes, options.published, options.within));
    return memory.write(path, options.image);
  });
}

}  // namespace stillmap::snapshot
