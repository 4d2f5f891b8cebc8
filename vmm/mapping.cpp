#include "stillmap/vmm/mapping.h"

#include <utility>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/remap.h"

namespace stillmap {

result<mapping> mapping::create(const reservation &r, std::size_t offset, page_ptr page,
                                std::vector<access_grant> access) {
  const operation_scope scope("mapping::create");
  if (!page) return make_error(errc::invalid_argument, "there is no page to map");
  if (!r.block()) return make_error(errc::invalid_argument, "the reservation was moved from");
  if (offset > r.range().bytes || r.range().bytes - offset < page->bytes()) {
    return make_error(errc::invalid_argument, "the page does not fit in the reservation", offset,
                      r.range().bytes, error_unit::bytes);
  }
  return with_host_memory([&]() -> result<mapping> {
    if (access.empty()) {
      access.push_back({on_device(r.device().ordinal()), access_mode::read_write});
    }
    const virtual_range range{r.range().begin + offset, page->bytes()};
    remap_plan plan(std::move(access));
    plan.map(range.begin, page);
    STILLMAP_RETURN_IF_ERROR(r.device().space().apply(std::move(plan)));
    return mapping(r.device(), r.block(), range, std::move(page));
  });
}

mapping::mapping(mapping &&other) noexcept
    : device_(other.device_),
      block_(std::move(other.block_)),
      range_(std::exchange(other.range_, {})),
      page_(std::move(other.page_)) {}

mapping &mapping::operator=(mapping &&other) noexcept {
  if (this != &other) {
    destroy();
    block_ = std::move(other.block_);
    range_ = std::exchange(other.range_, {});
    page_ = std::move(other.page_);
    device_ = other.device_;  // last: block_ and page_ may have needed the old device
  }
  return *this;
}

mapping::~mapping() {
  destroy();
}

status mapping::set_access(std::vector<access_grant> access) {
  const operation_scope scope("mapping::set_access");
  if (range_.empty()) {
    return make_error(errc::invalid_argument, "the mapping is empty");
  }
  remap_plan plan({});
  plan.grant(range_, std::move(access));
  return device_.space().apply(std::move(plan));
}

status mapping::unmap(const fence &idle) {
  const operation_scope scope("mapping::unmap");
  if (range_.empty()) {
    return make_error(errc::invalid_argument, "the mapping is empty");
  }
  STILLMAP_RETURN_IF_ERROR(device_.space().retire(block_, range_, idle));
  range_ = {};
  page_ = page_ptr();
  block_.reset();
  return {};
}

void mapping::destroy() noexcept {
  if (range_.empty()) return;
  {
    const context_guard guard(device_.driver(), device_.context());
    report_if_failed(guard.entered() ? device_.driver().synchronize_context() : guard.entered());
  }
  report_if_failed(unmap(fence()));
}

}  // namespace stillmap
