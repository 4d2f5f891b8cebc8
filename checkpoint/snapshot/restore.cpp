#include <utility>

#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/common/page_factory.h"
#include "stillmap/checkpoint/common/staging_mapping.h"
#include "stillmap/checkpoint/snapshot/internal/contents_reader.h"
#include "stillmap/checkpoint/snapshot/restore_operation.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::snapshot {
namespace {

using checkpoint::memory_layout;
using checkpoint::restored_memory;

// Adds the mapping that uses the address to a `busy` error.
error with_mapping_owner(const error &e, const memory_layout &l) {
  if (!e.is(errc::busy)) return e;
  for (const memory_layout::block &b : l.blocks) {
    if (!b.range.contains(device_address(e.value))) continue;
    return e.with({.found = checkpoint::find_mapping_owner(b.range)});
  }
  return e;
}

}  // namespace

result<restore_operation> restore_operation::create(const device &d, const image::reader &from,
                                                    std::span<const std::string> tags,
                                                    const restore_options &options) {
  const operation_scope scope("restore_operation::create");
  STILLMAP_ASSIGN_OR_RETURN(auto wanted, select_memory(from.manifest(), tags));
  if (options.exportable) {
    for (memory_layout::page &p : wanted.layout.pages) {
      p.properties.exportable = *options.exportable;
    }
  }
  STILLMAP_RETURN_IF_ERROR(checkpoint::can_hold(d, wanted.layout));
  return restore_operation(d, from, std::move(wanted), options.relocate);
}

status restore_operation::reserve() {
  const operation_scope scope("restore_operation::reserve");
  const memory_layout &l = wanted_.layout;
  auto reserved = restored_memory::reserve(
      device_, l, relocate_ ? checkpoint::placement::anywhere : checkpoint::placement::same);
  if (!reserved) return tl::unexpected(with_mapping_owner(reserved.error(), l));
  memory_.emplace(std::move(*reserved));
  return {};
}

status restore_operation::fetch(const restore_options &options) {
  const operation_scope scope("restore_operation::fetch");
  STILLMAP_ASSIGN_OR_RETURN(auto pages, checkpoint::create_pages(device_, wanted_.layout));
  if (!pages.empty()) {
    STILLMAP_ASSIGN_OR_RETURN(auto staging, checkpoint::staging_mapping::create(device_, pages));
    STILLMAP_RETURN_IF_ERROR(read_contents(device_, from_, wanted_, staging.at(), options));
  }
  pages_ = std::move(pages);
  return {};
}

result<restored> restore_operation::finish() && {
  const operation_scope scope("restore_operation::finish");
  std::vector<image::manifest::note> notes = notes_of_application(from_.manifest());
  std::vector<virtual_range> original;
  if (relocate_) {
    for (const memory_layout::block &b : wanted_.layout.blocks) original.push_back(b.range);
  }
  STILLMAP_RETURN_IF_ERROR(memory_->map(pages_));
  pages_.clear();
  return restored{std::move(*memory_), std::move(notes), std::move(original)};
}

result<restored> restore(const device &d, const image::reader &from,
                         const restore_options &options) {
  return with_host_memory("snapshot::restore", [&]() -> result<restored> {
    STILLMAP_ASSIGN_OR_RETURN(auto memory,
                              restore_operation::create(d, from, options.tags, options));
    STILLMAP_RETURN_IF_ERROR(memory.reserve());
    STILLMAP_RETURN_IF_ERROR(memory.fetch(options));
    return std::move(memory).finish();
  });
}

result<restored> restore(const device &d, const std::string &path, const restore_options &options) {
  return with_host_memory("snapshot::restore", [&]() -> result<restored> {
    STILLMAP_ASSIGN_OR_RETURN(const auto from, image::reader::open(path, options.image));
    return checkpoint::in_file(restore(d, from, options), path);
  });
}

}  // namespace stillmap::snapshot
