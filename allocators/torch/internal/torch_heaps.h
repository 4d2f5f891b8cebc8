// The allocators of one tag: one for each device, created by the first request. Internal.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/allocators/torch/internal/torch_pools.h"
#include "stillmap/allocators/torch/internal/torch_settings.h"
#include "stillmap/vmm/base/fork_watch.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::torch_plugin {

// Told of each heap once it has been created, on the thread of the request and without a lock of ours; PyTorch may
// hold its own. By several threads at once, of one heap perhaps more than once. One for the process; null: none.
using heap_observer = void (*)(int ordinal) noexcept;
void observe_new_heaps(heap_observer observer) noexcept;

// Never destroyed: Python frees tensors while the process ends, after this library's destructors would
// have run, and perhaps after the driver's.
//
// Threads: safe.
class torch_heaps {
 public:
  torch_heaps() = default;  // with the settings of the environment
  explicit torch_heaps(settings given) : given_(std::move(given)) {}
  torch_heaps(const torch_heaps &) = delete;

  // nullptr: the device was not used so far.
  caching_allocator *known(int ordinal) const noexcept {
    const auto i = static_cast<std::size_t>(ordinal);
    return i < most_devices ? of_device_[i].load(std::memory_order_acquire) : nullptr;
  }
  // Errors: invalid_argument (no such device; the environment), not_supported (a forked child), the
  //         driver's; those of share_device(); host memory.
  result<caching_allocator *> open(int ordinal);
  bool forked() const { return born_.in_child(); }
  // Bytes on each device, by the settings of a heap that is open; what else limits it is not in it.
  std::size_t limit() const { return limit_.load(std::memory_order_relaxed); }

  template <class Use>
  void each(Use use) const {
    if (forked()) return;
    for (const auto &place : of_device_) {
      if (caching_allocator *const heap = place.load(std::memory_order_acquire)) use(*heap);
    }
  }

  torch_pools pools;

 private:
  static constexpr std::size_t most_devices = 128;  // at least as many as CUDA supports

  result<caching_allocator *> create(int ordinal);

  const fork_watch born_;
  const std::optional<settings> given_;
  std::atomic<std::size_t> limit_{SIZE_MAX};
  // Held while a device is opened; first in the lock order. Guards the stores to of_device_.
  mutex making_;
  std::array<std::atomic<caching_allocator *>, most_devices> of_device_{};
};

// Those of stillmap_malloc, which come into being with the first request.
torch_heaps *known_heaps() noexcept;  // nullptr: there was none
torch_heaps &all_heaps();             // may run out of host memory
// Settings for them, in place of the environment's. Errors: busy (they exist already).
status configure_heaps(const settings &given);

}  // namespace stillmap::torch_plugin
