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
  add([&] {
    access_.push_back(std::make_shared<const std::vector<access_grant>>(std::move(access)));
  });
}

remap_plan::remap_plan(of_buffer, access_ptr access) noexcept : of_buffer_(true) {
  add([&] { access_.push_back(std::move(access)); });
}

void remap_plan::map(device_address at, page_ptr p) noexcept {
  add([&] { maps_.push_back({at, std::move(p)}); });
}

void remap_plan::alias(device_address at, virtual_range range) noexcept {
  if (!range.empty()) add([&] { aliases_.push_back({at, range}); });
}

// Returns the plan's own list or the previous one if it is equal: adjacent steps that share a list
// need one cuMemSetAccess.
std::size_t remap_plan::listed(std::vector<access_grant> access) {
  if (*access_.front() == access) return 0;
  if (*access_.back() != access) {
    access_.push_back(std::make_shared<const std::vector<access_grant>>(std::move(access)));
  }
  return access_.size() - 1;
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
  add([&] { maps_.push_back({at, std::move(p), 0, by}); });
}

void remap_plan::grant(virtual_range range, std::vector<access_grant> access) noexcept {
  if (range.empty()) return;
  add([&] { grants_.push_back({range, listed(std::move(access))}); });
}

}  // namespace stillmap
