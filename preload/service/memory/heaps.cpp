#include "preload/service/memory/heaps.h"

#include <pthread.h>

#include <atomic>

#include "preload/door.h"
#include "preload/service/control/operator_socket.h"
#include "preload/service/ipc/exportable.h"
#include "preload/service/memory/current_context.h"
#include "preload/service/memory/device_memory.h"
#include "preload/service/real_driver.h"
#include "preload/service/serve.h"
#include "preload/service/settings.h"
#include "stillmap/vmm/base/cuda_errors.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::preload {
namespace {

struct device_state {
  std::atomic<bool> impossible{false};
  bool exportable = false;  // written before the allocator is there
};
constinit device_state states[device_memory::most_devices];
constinit mutex creating;

// What a program with an operator reserves on a device stays far below it.
constexpr std::uint64_t addresses_per_device = std::uint64_t{4} << 40;

result<caching_allocator *> make(int ordinal, bool &exportable) {
  STILLMAP_ASSIGN_OR_RETURN(driver *const d, open_real_driver());
  STILLMAP_ASSIGN_OR_RETURN(const device opened, device::open(*d, ordinal));
  caching_allocator_options options;
  // Not destroyed either: it is no object of its own.
  device_memory *const memory = device_memory::of(ordinal);
  memory->join(opened);
  options.quota = std::shared_ptr<memory_quota>(std::shared_ptr<void>(), memory);
  const settings::device_limits limits = limits_of(opened.uuid());
  options.limit = limits.hard;
  options.soft_limit = limits.soft;
  options.tag = given_settings().tag;
  if (const std::uint64_t address = given_settings().address; address != 0) {
    options.hint =
        device_address(address + static_cast<std::uint64_t>(ordinal) * addresses_per_device);
  }
  options.peer_devices = opened.capabilities().peers;
  exportable = pages_are_exportable(opened);
  if (exportable) options.exportable = handle_type::posix_fd;
  STILLMAP_ASSIGN_OR_RETURN(auto made, caching_allocator::create(opened, std::move(options)));
  return made.release();
}

}  // namespace

constinit std::atomic<caching_allocator *> heaps::all_[device_memory::most_devices]{};
constinit std::atomic<int> heaps::end_{0};

void heaps::leave_in_child() noexcept {
  for (int i = 0; i < device_memory::most_devices; ++i) {
    all_[i].store(nullptr, std::memory_order_relaxed);
    states[i].impossible.store(true, std::memory_order_relaxed);
  }
}

bool heaps::exportable(int ordinal) noexcept {
  return of_device(ordinal) != nullptr && states[ordinal].exportable;
}

caching_allocator *heaps::create(int ordinal) noexcept {
  if (ordinal < 0 || ordinal >= device_memory::most_devices) return nullptr;
  device_state &place = states[ordinal];
  if (place.impossible.load(std::memory_order_relaxed)) return nullptr;
  if (given_settings().allocator == allocator_kind::driver) {
    place.impossible.store(true, std::memory_order_relaxed);
    return nullptr;
  }
  const lock_guard lock(creating);
  if (caching_allocator *const made = of_device(ordinal)) return made;
  const auto made =
      with_host_memory("stillmap_preload", [&] { return make(ordinal, place.exportable); });
  if (!made) {
    report_background_error(made.error());
    place.impossible.store(true, std::memory_order_relaxed);
    return nullptr;
  }
  static const bool prepared = [] {
    door::prepare();
    return ::pthread_atfork(nullptr, nullptr, [] { leave_in_child(); }) == 0;
  }();
  static_cast<void>(prepared);
  if (ordinal >= end_.load(std::memory_order_relaxed))
    end_.store(ordinal + 1, std::memory_order_release);
  all_[ordinal].store(*made, std::memory_order_release);
  serve_operator(**made);
  return *made;
}

driver_code code_of(const error &e) noexcept {
  if (e.code.category() == cuda_category()) return e.code.value();
  if (e.is(errc::invalid_argument)) return code::invalid_value;
  return code::out_of_memory;
}

}  // namespace stillmap::preload
