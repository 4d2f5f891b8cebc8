#include "stillmap/checkpoint/common/internal/page_factory.h"
#include "stillmap/checkpoint/common/internal/staging_mapping.h"
#include "stillmap/checkpoint/snapshot/internal/contents_reader.h"
#include "stillmap/checkpoint/snapshot/internal/failures.h"
#include "stillmap/checkpoint/snapshot/internal/restoring.h"

namespace stillmap::snapshot {
namespace {

using checkpoint::restored_memory;
using checkpoint::memory_layout;

std::string holder_of(const error &why, const memory_layout &l) {
  if (!why.is(errc::busy)) return {};
  for (const memory_layout::block &b : l.blocks) {
    if (b.range.contains(device_address(why.value))) return checkpoint::find_mapping_owner(b.range);
  }
  return {};
}

}  // namespace

image::outcome<restoring> restoring::create(const device &d, const image::reader &from,
                                            std::span<const std::string> tags,
                                            const restore_options &how) {
  auto what = wanted_of(from.what(), tags);
  if (!what) return pass_on(what.error());
  if (how.exportable) {
    for (memory_layout::page &p : what->layout.pages) p.properties.exportable = *how.exportable;
  }
  if (status s = checkpoint::can_hold(d, what->layout); !s) return pass_on(s.error());
  return restoring(d, from, std::move(*what), how.relocate);
}

image::done restoring::reserve() {
  const memory_layout &l = what_.layout;
  auto landing = restored_memory::reserve(
      device_, l,
      relocate_ ? checkpoint::placement::anywhere : checkpoint::placement::same);
  if (!landing) return pass_on(landing.error(), holder_of(landing.error(), l));
  landing_.emplace(std::move(*landing));
  return {};
}

image::done restoring::fetch(const restore_options &how) {
  auto pages = checkpoint::make_pages(device_, what_.layout);
  if (!pages) return pass_on(pages.error());
  if (!pages->empty()) {
    auto bench = checkpoint::staging_mapping::create(device_, *pages);
    if (!bench) return pass_on(bench.error());
    if (auto filled = fill(device_, from_, what_, bench->at(), how); !filled) return filled;
  }
  pages_ = std::move(*pages);
  return {};
}

image::outcome<restored> restoring::finish() && {
  if (status s = landing_->map(pages_); !s) return pass_on(s.error());
  pages_.clear();
  std::vector<virtual_range> was;
  if (relocate_) {
    for (const memory_layout::block &b : what_.layout.blocks) was.push_back(b.range);
  }
  return restored{std::move(*landing_), from_.what().notes, std::move(was)};
}

image::outcome<restored> restore(const device &d, const image::reader &from,
                                 const restore_options &how) {
  auto memory = restoring::create(d, from, how.tags, how);
  if (!memory) return tl::unexpected(memory.error());
  if (auto ok = memory->reserve(); !ok) return tl::unexpected(ok.error());
  if (auto ok = memory->fetch(how); !ok) return tl::unexpected(ok.error());
  return std::move(*memory).finish();
}

image::outcome<restored> restore(const device &d, const std::string &path,
                                 const restore_options &how) {
  const auto from = image::reader::open(path, how.image);
  if (!from) return tl::unexpected(from.error());
  return image::in_file(restore(d, *from, how), path);
}

}  // namespace stillmap::snapshot
