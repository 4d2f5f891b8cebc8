#include "stillmap/vmm/internal/device_core.h"

#include <algorithm>

#include "stillmap/vmm/base/try.h"

namespace stillmap {

result<event_handle> event_pool::take(const driver &drv) {
  {
    const lock_guard lock(mutex_);
    if (!free_.empty()) {
      const event_handle e = free_.back();
      free_.pop_back();
      return e;
    }
    // Room for every event that exists, so that giving one back never allocates.
    if (created_ == free_.capacity()) free_.reserve(std::max<std::size_t>(16, 2 * created_));
    ++created_;
  }
  auto made = drv.create_event();
  if (!made) {
    const lock_guard lock(mutex_);
    --created_;
  }
  return made;
}

void event_pool::give_back(event_handle e) noexcept {
  const lock_guard lock(mutex_);
  free_.push_back(e);
}

void event_pool::destroy_all(const driver &drv) noexcept {
  std::vector<event_handle> all;
  {
    const lock_guard lock(mutex_);
    all.swap(free_);
  }
  for (const event_handle e : all) report_if_failed(drv.destroy_event(e));
}

device_core::~device_core() {
  const context_guard guard(*drv, context.get());
  if (guard.entered()) {
    events.destroy_all(*drv);
  } else {
    report_background_error(guard.entered().error());  // the events go with the context
  }
}

}  // namespace stillmap
