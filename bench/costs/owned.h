// Owners of what a driver gave: they give it back when they are destroyed.
#pragma once

#include <utility>

#include "stillmap/vmm/driver.h"

namespace stillmap::costs {

// A result without its value.
template <class T>
status outcome(const result<T> &r) {
  return r ? status{} : tl::unexpected(r.error());
}

template <class T, status (driver::*Undo)(T) const>
class owned {
 public:
  owned() = default;
  owned(const driver &drv, T what) : driver_(&drv), what_(what) {}
  owned(owned &&other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)), what_(other.what_) {}
  owned &operator=(owned &&other) noexcept {
    if (this != &other) {
      (void)give_back();
      driver_ = std::exchange(other.driver_, nullptr);
      what_ = other.what_;
    }
    return *this;
  }
  // A refusal here shows in what machine::leave() reports.
  ~owned() { (void)give_back(); }

  explicit operator bool() const { return driver_ != nullptr; }
  const T &get() const { return what_; }
  // It is still owned after a refusal: what a capture forbids is allowed after it.
  status give_back() {
    if (driver_ == nullptr) return {};
    const status done = (driver_->*Undo)(what_);
    if (done) driver_ = nullptr;
    return done;
  }
  void forget() { driver_ = nullptr; }  // it was given back in another way

 private:
  const driver *driver_ = nullptr;
  T what_{};
};

using addresses = owned<virtual_range, &driver::free_addresses>;
using physical = owned<physical_handle, &driver::release_physical>;
using mapping = owned<virtual_range, &driver::unmap>;
using plain_memory = owned<device_address, &driver::free>;
using pinned_memory = owned<void *, &driver::free_host>;
using own_stream = owned<stream_handle, &driver::destroy_stream>;
using own_event = owned<event_handle, &driver::destroy_event>;
using own_module = owned<module_handle, &driver::unload_module>;

}  // namespace stillmap::costs
