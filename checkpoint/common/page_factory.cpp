#include "stillmap/checkpoint/common/page_factory.h"

#include <algorithm>
#include <iterator>

#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::checkpoint {

status can_hold(const device &d, const memory_layout &l) {
  const operation_scope scope("checkpoint::can_hold");
  if (!d.capabilities().vmm) {
    return make_error(errc::not_supported, "this device cannot map pages at addresses");
  }
  if (status s = check(l, d.capabilities().page_bytes); !s) {
    const error &e = s.error();
    if (!e.is(errc::corrupt)) return s;
    return make_error(errc::not_supported, "the device cannot create pages of this size and kind",
                      e.value, e.limit, e.unit);
  }
  STILLMAP_ASSIGN_OR_RETURN(const memory_info memory, d.memory());
  std::size_t wanted = 0;
  for (const memory_layout::page &p : l.pages) {
    if (p.properties.location.kind == location_kind::device) wanted += p.bytes;
  }
  if (wanted > memory.total.bytes()) {
    return make_error(errc::out_of_memory, "the pages are larger than the device's memory", wanted,
                      memory.total.bytes(), error_unit::bytes);
  }
  return {};
}

result<page_factory> page_factory::create(const device &d, const memory_layout &l) {
  const operation_scope scope("page_factory::create");
  page_factory out;
  std::vector<memory_layout::page> kinds;
  for (const memory_layout::page &p : l.pages) {
    const auto same = [&](const memory_layout::page &k) {
      return k.bytes == p.bytes && k.properties == p.properties;
    };
    const auto found = std::find_if(kinds.begin(), kinds.end(), same);
    out.kinds_.push_back(static_cast<std::uint32_t>(found - kinds.begin()));
    if (found == kinds.end()) kinds.push_back(p);
  }
  for (const memory_layout::page &k : kinds) {
    page_pool_options options;
    options.page_bytes = k.bytes;
    if (k.properties.location.kind != location_kind::device) {
      options.location = k.properties.location;
    }
    options.exportable = k.properties.exportable;
    options.rdma = k.properties.rdma;
    options.keep_free = 0;
    STILLMAP_ASSIGN_OR_RETURN(out.pools_.emplace_back(), page_pool::create(d, options));
  }
  return out;
}

result<std::vector<page_ptr>> page_factory::make(std::size_t first, std::size_t count) {
  const operation_scope scope("page_factory::make");
  std::vector<page_ptr> out;
  for (std::size_t i = first; i < first + count;) {
    std::size_t end = i + 1;  // of the run of pages of one kind
    while (end < first + count && kinds_[end] == kinds_[i]) ++end;
    std::vector<page_ptr> got;
    STILLMAP_RETURN_IF_ERROR(pools_[kinds_[i]]->acquire(end - i, got));
    std::move(got.begin(), got.end(), std::back_inserter(out));
    i = end;
  }
  return out;
}

result<std::vector<page_ptr>> create_pages(const device &d, const memory_layout &l) {
  const operation_scope scope("checkpoint::create_pages");
  STILLMAP_ASSIGN_OR_RETURN(page_factory factory, page_factory::create(d, l));
  return factory.make(0, l.pages.size());
}

}  // namespace stillmap::checkpoint
