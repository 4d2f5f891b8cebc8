#include "stillmap/vmm/device.h"

#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/internal/device_state.h"

namespace stillmap {

int device::ordinal() const {
  return state_->ordinal;
}
const std::string &device::name() const {
  return state_->name;
}
std::array<unsigned char, 16> device::uuid() const {
  return state_->uuid;
}
physical_size device::total_memory() const {
  return state_->total;
}
const capabilities &device::capabilities() const {
  return state_->caps;
}
const driver &device::driver() const {
  return *state_->drv;
}
context_handle device::context() const {
  return state_->context();
}
address_space &device::space() const {
  return *state_->space;
}

std::shared_ptr<page_pool> device::pool() const {
  return {state_, state_->pool.get()};  // holding the pool holds the device
}

result<memory_info> device::memory() const {
  const context_guard guard(driver(), context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  return driver().memory_info_now();
}

}  // namespace stillmap
