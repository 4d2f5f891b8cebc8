#include "stillmap/checkpoint/new_pages.h"

#include <algorithm>

#include "stillmap/vmm/page_pool.h"

namespace stillmap::checkpoint {

status can_hold(const device &d, const memory_layout &l) {
  if (!d.can().vmm) {
    return refuse(condition::not_supported, "checkpoint::can_hold",
                  "this device cannot map pages at addresses");
  }
  if (status s = check(l, d.can().page_bytes); !s) {
    error e = s.error();
    e.code = make_error_code(condition::not_supported);
    e.reason = "pages of this size and kind cannot be made here";
    return tl::unexpected(e);
  }
  const auto memory = d.memory();
  if (!memory) return tl::unexpected(memory.error());
  std::size_t wanted = 0;
  for (const memory_layout::page &p : l.pages) {
    if (p.properties.location.kind == location_kind::device) wanted += p.bytes;
  }
  if (wanted > memory->total.bytes()) {
    return refuse(condition::out_of_memory, "checkpoint::can_hold", "the device has not as much",
                  wanted, memory->total.bytes());
  }
  return {};
}

result<std::vector<page_ref>> make_pages(const device &d, const memory_layout &l) {
  struct kind {
    std::size_t bytes;
    physical_properties properties;
    std::vector<std::size_t> pages;
  };
  std::vector<kind> kinds;
  for (std::size_t i = 0; i < l.pages.size(); ++i) {
    const memory_layout::page &p = l.pages[i];
    const auto same = [&](const kind &k) {
      return k.bytes == p.bytes && k.properties == p.properties;
    };
    auto found = std::find_if(kinds.begin(), kinds.end(), same);
    if (found == kinds.end()) found = kinds.insert(found, {p.bytes, p.properties, {}});
    found->pages.push_back(i);
  }
  std::vector<page_ref> out(l.pages.size());
  for (const kind &k : kinds) {
    page_pool_options options;
    options.page_bytes = k.bytes;
    if (k.properties.location.kind != location_kind::device) {
      options.location = k.properties.location;
    }
    options.exportable = k.properties.exportable;
    options.rdma = k.properties.rdma;
    options.keep_free = 0;
    auto pool = page_pool::create(d, options);
    if (!pool) return tl::unexpected(pool.error());
    std::vector<page_ref> got;
    if (status s = (*pool)->acquire(k.pages.size(), got); !s) return tl::unexpected(s.error());
    for (std::size_t i = 0; i < got.size(); ++i) out[k.pages[i]] = std::move(got[i]);
  }
  return out;
}

}  // namespace stillmap::checkpoint
