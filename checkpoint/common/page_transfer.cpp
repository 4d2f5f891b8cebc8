#include "stillmap/checkpoint/common/page_transfer.h"

#include <algorithm>

#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/physical_memory.h"

namespace stillmap::checkpoint {

status check_exportable(const memory_layout &l) {
  const operation_scope scope("checkpoint::check_exportable");
  for (const memory_layout::place &p : l.places) {
    if (l.pages[p.page].properties.exportable == handle_type::posix_fd) continue;
    return make_error(errc::not_supported, "a page was not created exportable as a file descriptor",
                      p.at.value(), 0, error_unit::address);
  }
  return {};
}

status export_pages(const device &d, std::span<const page_ptr> pages, std::size_t batch,
                    const std::function<status(std::span<const int>)> &send) {
  for (std::size_t i = 0; i < pages.size(); i += batch) {
    std::vector<owned_fd> exports;
    std::vector<int> fds;
    {
      const context_guard guard(d.driver(), d.context());
      STILLMAP_RETURN_IF_ERROR(guard.entered());
      for (const page_ptr &p : pages.subspan(i, std::min(batch, pages.size() - i))) {
        STILLMAP_ASSIGN_OR_RETURN(const int fd, d.driver().export_fd(p->handle()));
        exports.push_back(owned_fd(fd));
        fds.push_back(fd);
      }
    }
    STILLMAP_RETURN_IF_ERROR(send(fds));
  }
  return {};
}

status page_importer::import(const memory_layout &l, std::span<const owned_fd> fds) {
  const context_guard guard(device_.driver(), device_.context());  // entered once for all
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  pages_.reserve(l.pages.size());
  for (const owned_fd &fd : fds) {
    STILLMAP_RETURN_IF_ERROR(import_page(fd, l.pages[pages_.size()]));
  }
  return {};
}

status page_importer::import_page(const owned_fd &fd, const memory_layout::page &page) {
  physical_properties expected = page.properties;
  if (expected.location.kind == location_kind::device) expected.location.id = device_.ordinal();
  STILLMAP_ASSIGN_OR_RETURN(physical_memory memory,
                            physical_memory::import_fd(device_, fd, page.bytes));
  if (memory.properties() != expected) {
    return make_error(errc::corrupt, "a page differs from its description in the layout",
                      pages_.size());
  }
  STILLMAP_ASSIGN_OR_RETURN(const std::shared_ptr<page_pool> pool, pool_of(page.bytes, expected));
  STILLMAP_ASSIGN_OR_RETURN(page_ptr adopted, pool->adopt(std::move(memory)));
  pages_.push_back(std::move(adopted));
  return {};
}

result<std::shared_ptr<page_pool>> page_importer::pool_of(std::size_t bytes,
                                                          const physical_properties &properties) {
  for (const auto &p : pools_) {
    if (p->page_bytes() == bytes && p->properties() == properties) return p;
  }
  page_pool_options options;
  options.page_bytes = bytes;
  options.location = properties.location;
  options.exportable = properties.exportable;
  options.rdma = properties.rdma;
  options.keep_free = 0;
  STILLMAP_ASSIGN_OR_RETURN(std::shared_ptr<page_pool> made, page_pool::create(device_, options));
  pools_.push_back(made);
  return made;
}

}  // namespace stillmap::checkpoint
