#include "stillmap/checkpoint/publication/internal/attached_core.h"

#include <algorithm>

#include "stillmap/checkpoint/common/staging_mapping.h"
#include "stillmap/checkpoint/common/wait_idle.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/remap.h"

namespace stillmap::publication {

// The pages that have a place in the range and are not private yet.
result<std::vector<attached_core::shared_page>> attached_core::shared_pages(
    virtual_range range) const {
  const checkpoint::memory_layout &l = memory_.layout();
  const auto block = std::find_if(l.blocks.begin(), l.blocks.end(),
                                  [&](const auto &b) { return b.range.contains(range.begin); });
  // Compared as lengths: a range may end behind the last address.
  if (block == l.blocks.end() || range.bytes > block->range.end() - range.begin) {
    return make_error(errc::invalid_argument, "the range is not inside one attached block",
                      range.begin.value(), 0, error_unit::address);
  }
  std::vector<bool> wanted(l.pages.size());
  for (const auto &p : l.places) {
    const bool touched = range.overlaps({p.at, l.pages[p.page].bytes});
    if (touched && !private_[p.page]) wanted[p.page] = true;
  }
  std::vector<shared_page> out;
  std::vector<std::size_t> index(l.pages.size());
  for (const auto &p : l.places) {
    if (!wanted[p.page]) continue;
    const auto here = memory_.device().space().mappings({p.at, l.pages[p.page].bytes});
    if (here.empty() || here.front().state != mapping_state::mapped) {
      return make_error(errc::busy, "part of the memory is suspended", p.at.value(), 0,
                        error_unit::address);
    }
    if (index[p.page] == 0) {
      out.push_back({p.page, {}});
      index[p.page] = out.size();
    }
    out[index[p.page] - 1].places.push_back(p.at);
  }
  return out;
}

status attached_core::make_writable(virtual_range range, stream_ref stream) {
  const checkpoint::memory_layout &l = memory_.layout();
  const stillmap::device &d = memory_.device();
  if (!lease_) return make_error(errc::invalid_argument, "the memory has been released");
  if (range.bytes == 0) return {};
  private_.resize(l.pages.size());
  STILLMAP_ASSIGN_OR_RETURN(const std::vector<shared_page> shared, shared_pages(range));
  if (shared.empty()) return {};
  std::vector<page_ptr> copies;
  remap_plan plan({{on_device(d.ordinal()), access_mode::read_write}});
  for (const shared_page &s : shared) {
    const std::size_t bytes = l.pages[s.page].bytes;
    physical_properties properties = l.pages[s.page].properties;
    if (properties.location.kind == location_kind::device) properties.location.id = d.ordinal();
    STILLMAP_ASSIGN_OR_RETURN(const auto pool, pages_.pool_of(bytes, properties));
    STILLMAP_RETURN_IF_ERROR(pool->acquire(1, copies));
    for (const device_address at : s.places) {
      plan.unmap({at, bytes});
      plan.map(at, copies.back());
    }
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto staging, checkpoint::staging_mapping::create(d, copies));
  status copied;
  {
    const context_guard guard(d.driver(), d.context());
    copied = guard.entered();
    for (std::size_t i = 0; copied && i < shared.size(); ++i) {
      copied = d.driver().copy_on_device_async(staging.at()[i], shared[i].places.front(),
                                               l.pages[shared[i].page].bytes, stream.get());
    }
  }
  // The old pages are unmapped: no stream may use these addresses any more.
  const status idle = checkpoint::wait_until_idle(d);
  if (!copied || !idle) {
    const context_guard guard(d.driver(), d.context());
    if (guard.entered()) (void)d.driver().synchronize_stream(stream.get());
    return copied ? idle : copied;
  }
  STILLMAP_RETURN_IF_ERROR(d.space().apply(std::move(plan)));
  for (const shared_page &s : shared) {
    private_[s.page] = true;
    private_bytes_ += l.pages[s.page].bytes;
  }
  return {};
}

status attached_core::release(const fence &idle) {
  const status released = memory_.release(idle);
  private_bytes_ = 0;
  lease_.reset();
  return released;
}

}  // namespace stillmap::publication
