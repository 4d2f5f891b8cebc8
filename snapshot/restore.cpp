#include "stillmap/checkpoint/new_pages.h"
#include "stillmap/checkpoint/workbench.h"
#include "stillmap/snapshot/failures.h"
#include "stillmap/snapshot/filling.h"
#include "stillmap/snapshot/layout_manifest.h"
#include "stillmap/snapshot/snapshot.h"

namespace stillmap::snapshot {
namespace {

using checkpoint::landed_memory;
using checkpoint::memory_layout;

std::string holder_of(const error &why, const memory_layout &l) {
  if (!why.is(condition::busy)) return {};
  for (const memory_layout::block &b : l.blocks) {
    if (b.range.contains(device_address(why.value))) return checkpoint::who_holds(b.range);
  }
  return {};
}

}  // namespace

image::outcome<restored> restore(const device &d, const image::reader &from,
                                 const restore_options &how) {
  auto what = wanted_of(from.what(), how.tags);
  if (!what) return pass_on(what.error());
  if (how.exportable) {
    for (memory_layout::page &p : what->layout.pages) p.properties.exportable = *how.exportable;
  }
  const memory_layout &l = what->layout;
  if (status s = checkpoint::can_hold(d, l); !s) return pass_on(s.error());
  std::vector<virtual_range> was;
  if (how.relocate) {
    for (const memory_layout::block &b : l.blocks) was.push_back(b.range);
  }
  auto landing = landed_memory::reserve(
      d, l, how.relocate ? checkpoint::landing_place::anywhere : checkpoint::landing_place::same);
  if (!landing) return pass_on(landing.error(), holder_of(landing.error(), l));
  auto pages = checkpoint::make_pages(d, l);
  if (!pages) return pass_on(pages.error());
  if (!pages->empty()) {
    auto bench = checkpoint::workbench::create(d, *pages);
    if (!bench) return pass_on(bench.error());
    if (auto filled = fill(d, from, *what, bench->at(), how); !filled) {
      return tl::unexpected(filled.error());
    }
  }
  if (status s = landing->map(*pages); !s) return pass_on(s.error());
  return restored{std::move(*landing), from.what().notes, std::move(was)};
}

image::outcome<restored> restore(const device &d, const std::string &path,
                                 const restore_options &how) {
  const auto from = image::reader::open(path, how.image);
  if (!from) return tl::unexpected(from.error());
  return image::in_file(restore(d, *from, how), path);
}

}  // namespace stillmap::snapshot
