#include "stillmap/vmm/remap.h"

#include <new>
#include <utility>

namespace stillmap {

// Adds a step, if all steps so far have been added.
template <class Add>
void remap_plan::add(const Add &step) noexcept {
  if (incomplete_) return;
  try {
    step();
  } catch (const std::bad_alloc &) {
    incomplete_ = true;
  }
}

remap_plan::remap_plan(std::vector<access_grant> access) noexcept {
  add([&] { access_ = std::make_shared<const std::vector<access_grant>>(std::move(access)); });
}

void remap_plan::map(device_address at, page_ptr p) noexcept {
  add([&] { maps_.push_back({at, std::move(p), access_}); });
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

void remap_plan::map(device_address at, page_ptr p, std::vector<access_grant> access) noexcept {
  add([&] { maps_.push_back({at, std::move(p), listed(std::move(access))}); });
}

void remap_plan::unmap(virtual_range range) noexcept {
  if (!range.empty()) add([&] { unmaps_.push_back(range); });
}

void remap_plan::suspend(virtual_range range, std::uint64_t by) noexcept {
  if (!range.empty()) add([&] { suspends_.push_back({range, by}); });
}

void remap_plan::resume(device_address at, page_ptr p, std::uint64_t by) noexcept {
  add([&] { maps_.push_back({at, std::move(p), access_, by}); });
}

void remap_plan::grant(virtual_range range, std::vector<access_grant> access) noexcept {
  if (range.empty()) return;
  add([&] { grants_.push_back({range, listed(std::move(access))}); });
}

}  // namespace stillmap
