// Opens devices: the only place that builds a device from all of its parts.
#include <map>
#include <utility>

#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/undying.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/internal/device_probe.h"
#include "stillmap/vmm/internal/device_state.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap {
namespace {

// The devices that are open. Never destroyed: a static of the user may hold the last handle.
struct open_devices {
  // Held while probing, so that a device is probed once. Lock order: first.
  stillmap::mutex mutex;
  std::map<std::pair<const driver *, int>, std::weak_ptr<device_state>> by_ordinal
      STILLMAP_GUARDED_BY(mutex);
};

open_devices &registry() {
  static undying<open_devices> all;
  return *all;
}

status check_ordinal(const driver &drv, int ordinal) {
  if (ordinal < 0) return make_error(errc::invalid_argument, "the ordinal is negative");
  STILLMAP_ASSIGN_OR_RETURN(const auto count, drv.device_count());
  if (ordinal >= count) {
    return make_error(errc::invalid_argument,
                      count > 0 ? "there is no such device" : "the driver reports no device",
                      static_cast<std::uint64_t>(ordinal), static_cast<std::uint64_t>(count));
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto handle, drv.device_handle(ordinal));
  // Memory locations name devices by ordinal, calls by handle. Both must be the same number.
  if (handle != ordinal) {
    return make_error(errc::not_supported, "the driver numbers its devices unusually",
                      static_cast<std::uint64_t>(ordinal), static_cast<std::uint64_t>(handle));
  }
  return {};
}

result<std::shared_ptr<device_state>> open_state(const driver &drv, int ordinal) {
  // Again after load(): a reset of the simulator may have ended the driver since.
  STILLMAP_RETURN_IF_ERROR(drv.initialise());
  STILLMAP_RETURN_IF_ERROR(check_ordinal(drv, ordinal));
  STILLMAP_ASSIGN_OR_RETURN(auto name, drv.device_name(ordinal));
  STILLMAP_ASSIGN_OR_RETURN(const auto total, drv.device_total_memory(ordinal));
  const auto uuid = drv.device_uuid(ordinal);
  if (!uuid && !uuid.error().is(errc::not_supported)) {
    return tl::unexpected<error>(uuid.error());
  }
  STILLMAP_ASSIGN_OR_RETURN(auto context, primary_context::retain(drv, ordinal));

  auto made = std::make_shared<device_state>(
      std::make_shared<device_core>(drv, ordinal, std::move(context)));
  const context_guard guard(drv, made->context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  STILLMAP_ASSIGN_OR_RETURN(auto caps, probe(drv, ordinal));
  made->name = std::move(name);
  made->total = total;
  if (uuid) made->uuid = *uuid;
  made->caps = std::move(caps);
  made->self = made;
  made->space = std::make_unique<address_space>(*made);
  made->pool = std::make_unique<page_pool>(*made, page_pool_options{});
  made->pools.add({made, made->pool.get()});
  return made;
}

}  // namespace

device_state::device_state(std::shared_ptr<device_core> c)
    : core(std::move(c)), drv(core->drv), ordinal(core->ordinal) {}

device_state::~device_state() {
  // Retiring mappings hold pages, which return to the pool while it exists.
  if (space != nullptr) space->collect(true);
  pool.reset();  // the last: every other pool shares the device
  space.reset();
}

result<device> device::open(int ordinal) {
  const operation_scope scope("device::open");
  STILLMAP_ASSIGN_OR_RETURN(const auto drv, stillmap::driver::get());
  return open(*drv, ordinal);
}

result<device> device::open(stillmap::driver &drv, int ordinal) {
  return with_host_memory("device::open", [&]() -> result<device> {
    open_devices &all = registry();
    const lock_guard lock(all.mutex);
    std::weak_ptr<device_state> &known = all.by_ordinal[{&drv, ordinal}];
    if (auto open_already = known.lock()) return device(std::move(open_already));
    STILLMAP_ASSIGN_OR_RETURN(auto made, open_state(drv, ordinal));
    known = made;
    return device(std::move(made));
  });
}

result<int> device::count() {
  const operation_scope scope("device::count");
  STILLMAP_ASSIGN_OR_RETURN(const auto drv, stillmap::driver::get());
  STILLMAP_RETURN_IF_ERROR(drv->initialise());
  return drv->device_count();
}

}  // namespace stillmap
