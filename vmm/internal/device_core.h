// Event pool and context of one device. Below streams, fences and the device itself.
// docs/driver.md#devices-and-fallbacks
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/context.h"

namespace stillmap {

// Events without timing, recycled because recording is far cheaper than creating. Requires the
// device's context to be current.
// Threads: safe. Lock order: a leaf; never held across a driver call.
class event_pool {
 public:
  result<event_handle> take(const stillmap::driver &drv);
  // The recorded work may be pending: recording an event again replaces the earlier recording.
  void give_back(event_handle e) noexcept;
  // Requires: no other call follows.
  void destroy_all(const stillmap::driver &drv) noexcept;

 private:
  mutex mutex_;
  std::vector<event_handle> free_ STILLMAP_GUARDED_BY(mutex_);
  std::size_t created_ STILLMAP_GUARDED_BY(mutex_) = 0;
};

// The part of a device that an event needs to stay valid: the context and the event pool. Fences keep
// the core alive, not the device state.
struct device_core {
  device_core(const stillmap::driver &d, int device, primary_context retained)
      : drv(&d), ordinal(device), context(std::move(retained)) {}
  ~device_core();
  device_core(const device_core &) = delete;
  device_core &operator=(const device_core &) = delete;

  const stillmap::driver *drv;
  int ordinal;
  primary_context context;
  event_pool events;
};

}  // namespace stillmap
