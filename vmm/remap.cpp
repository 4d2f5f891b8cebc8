#include "stillmap/vmm/remap.h"

#include <utility>

namespace stillmap {

remap_plan::remap_plan(std::vector<access_grant> access)
    : access_(std::make_shared<const std::vector<access_grant>>(std::move(access))) {}

void remap_plan::map(device_address at, page_ptr p) {
  maps_.push_back({at, std::move(p), access_});
}

// Returns the plan's own list or the previous one if it is equal: adjacent steps that share a list
// need one cuMemSetAccess.
std::shared_ptr<const std::vector<access_grant>> remap_plan::listed(
    std::vector<access_grant> access) {
  if (*access_ == access) return access_;
  if (!listed_ || *listed_ != access) {
    listed_ = std::make_shared<const std::vector<access_grant>>(std::move(access));
  }
  return listed_;
}

void remap_plan::map(device_address at, page_ptr p, std::vector<access_grant> access) {
  maps_.push_back({at, std::move(p), listed(std::move(access))});
}

void remap_plan::unmap(virtual_range range) {
  if (!range.empty()) unmaps_.push_back(range);
}

void remap_plan::suspend(virtual_range range, std::uint64_t by) {
  if (!range.empty()) suspends_.push_back({range, by});
}

void remap_plan::resume(device_address at, page_ptr p, std::uint64_t by) {
  maps_.push_back({at, std::move(p), access_, by});
}

void remap_plan::grant(virtual_range range, std::vector<access_grant> access) {
  if (range.empty()) return;
  grants_.push_back({range, listed(std::move(access))});
}

}  // namespace stillmap
