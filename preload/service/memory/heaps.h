// One caching allocator for each device that the program allocates on.
#pragma once

#include <atomic>

#include "preload/service/memory/current_context.h"
#include "preload/service/memory/device_memory.h"
#include "stillmap/allocators/caching_allocator.h"

namespace stillmap::preload {

class heaps {
 public:
  // The allocator of the current context's device; created by its first request. nullptr: there is no current
  // context, the device cannot be opened or is one too many, or STILLMAP_PRELOAD_ALLOCATOR=driver: the driver serves
  // the request.
  static caching_allocator *current() noexcept {
    const int ordinal = current_device();
    caching_allocator *const heap = of_device(ordinal);
    return heap != nullptr ? heap : create(ordinal);
  }
  // The allocator that an address belongs to; nullptr: none.
  static caching_allocator *owner(word address) noexcept {
    for (int i = 0, end = end_.load(std::memory_order_acquire); i < end; ++i) {
      caching_allocator *const heap = of_device(i);
      if (heap != nullptr && heap->owns(reinterpret_cast<const void *>(address))) return heap;
    }
    return nullptr;
  }
  // nullptr: it has allocated nothing yet.
  static caching_allocator *of_device(int ordinal) noexcept {
    const bool known = ordinal >= 0 && ordinal < device_memory::most_devices;
    return known ? all_[ordinal].load(std::memory_order_acquire) : nullptr;
  }
  // Whether other processes can map the memory of a device that has an allocator.
  static bool exportable(int ordinal) noexcept;
  // Calls visit(heap) for each.
  template <class Visit>
  static void each(Visit visit) {
    for (int i = 0, end = end_.load(std::memory_order_acquire); i < end; ++i) {
      if (caching_allocator *const heap = of_device(i)) visit(*heap);
    }
  }

 private:
  static caching_allocator *create(int ordinal) noexcept;
  // A child that was forked can use neither the driver nor the allocators: its calls get the driver's errors.
  static void leave_in_child() noexcept;

  // Never destroyed: the program may use memory to its very end.
  static std::atomic<caching_allocator *> all_[device_memory::most_devices];
  static std::atomic<int> end_;  // behind the last device that has allocated
};

// What the driver would have returned.
driver_code code_of(const error &e) noexcept;

}  // namespace stillmap::preload
