#include "stillmap/vmm/device.h"

#include <map>
#include <mutex>
#include <utility>

#include "stillmap/vmm/internal/device_state.h"

namespace stillmap {
namespace {

// Devices that some handle keeps open. Never destroyed: statics of the user may hold the last one.
struct open_devices {
  std::mutex mutex;  // held while probing, so that a device is probed once; lock order: first
  std::map<std::pair<const driver *, int>, std::weak_ptr<device::state>> by_ordinal;
};

open_devices &registry() {
  static auto *const all = new open_devices;
  return *all;
}

status check_ordinal(const driver &drv, int ordinal) {
  constexpr const char *operation = "device::open";
  if (ordinal < 0) return make_error(errc::invalid_argument, operation, "the ordinal is negative");
  const auto count = drv.device_count();
  if (!count) return tl::unexpected<error>(count.error());
  if (ordinal >= *count) {
    return make_error(errc::invalid_argument, operation,
                  *count > 0 ? "there is no such device" : "the driver reports no device",
                  static_cast<std::uint64_t>(ordinal), static_cast<std::uint64_t>(*count));
  }
  const auto handle = drv.device_handle(ordinal);
  if (!handle) return tl::unexpected<error>(handle.error());
  // Locations name devices by ordinal, calls by handle. On every driver they are one number.
  if (*handle != ordinal) {
    return make_error(errc::not_supported, operation, "the driver numbers its devices unusually",
                  static_cast<std::uint64_t>(ordinal), static_cast<std::uint64_t>(*handle));
  }
  return {};
}

result<std::shared_ptr<device::state>> open_state(const driver &drv, int ordinal) {
  // Once more after load(): a simulated machine may have been switched off since.
  if (status s = drv.initialise(); !s) return tl::unexpected<error>(s.error());
  if (status s = check_ordinal(drv, ordinal); !s) return tl::unexpected<error>(s.error());
  auto name = drv.device_name(ordinal);
  if (!name) return tl::unexpected<error>(name.error());
  const auto total = drv.device_total_memory(ordinal);
  if (!total) return tl::unexpected<error>(total.error());
  const auto uuid = drv.device_uuid(ordinal);
  if (!uuid && !uuid.error().is(errc::not_supported)) {
    return tl::unexpected<error>(uuid.error());
  }
  auto context = primary_context::retain(drv, ordinal);
  if (!context) return tl::unexpected<error>(context.error());

  auto made = std::make_shared<device::state>(
      std::make_shared<device_core>(drv, ordinal, std::move(*context)));
  const context_guard guard(drv, made->context());
  if (!guard.entered()) return tl::unexpected<error>(guard.entered().error());
  auto caps = probe(drv, ordinal);
  if (!caps) return tl::unexpected<error>(caps.error());
  made->name = std::move(*name);
  made->total = *total;
  if (uuid) made->uuid = *uuid;
  made->caps = std::move(*caps);
  made->self = made;
  made->space = std::make_unique<address_space>(*made);
  made->pool = std::make_unique<page_pool>(*made, page_pool_options{});
  made->pools.add({made, made->pool.get()});
  return made;
}

}  // namespace

device_core::~device_core() {
  const context_guard guard(*drv, context.get());
  if (guard.entered()) {
    events.destroy_all(*drv);
  } else {
    report_background_error(guard.entered().error());  // the events go with the context
  }
}

device::state::~state() {
  // Mappings that still wait for their fences hold pages; those go back to a pool that is there.
  if (space != nullptr) space->collect(true);
  pool.reset();
  if (space != nullptr) space->abandon_retiring();
  space.reset();
}

result<device> device::open(int ordinal) {
  const auto drv = stillmap::driver::get();
  if (!drv) return tl::unexpected<error>(drv.error());
  return open(**drv, ordinal);
}

result<device> device::open(stillmap::driver &drv, int ordinal) {
  open_devices &all = registry();
  const std::lock_guard lock(all.mutex);
  std::weak_ptr<state> &known = all.by_ordinal[{&drv, ordinal}];
  if (auto open_already = known.lock()) return device(std::move(open_already));
  auto made = open_state(drv, ordinal);
  if (!made) return tl::unexpected<error>(made.error());
  known = *made;
  return device(std::move(*made));
}

result<int> device::count() {
  const auto drv = stillmap::driver::get();
  if (!drv) return tl::unexpected<error>(drv.error());
  if (status s = (*drv)->initialise(); !s) return tl::unexpected<error>(s.error());
  return (*drv)->device_count();
}

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
  if (!guard.entered()) return tl::unexpected<error>(guard.entered().error());
  return driver().memory_info_now();
}

}  // namespace stillmap
