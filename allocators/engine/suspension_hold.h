// Refuses an allocator's requests while memory of it is suspended: free memory may be among it, and a
// block without pages would be an illegal access. Internal. docs/suspend.md
#pragma once

#include <cstddef>

#include "stillmap/allocators/internal/history_ring.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap {

// Reservations may outlive their allocator, so they share this object with it.
// Lock order: the address space's lock > this one > the ring's.
class suspension_hold final : public suspension_listener {
 public:
  explicit suspension_hold(history_ring &requests) : requests_(&requests) {}

  void on_suspension(bool any) noexcept override {
    const lock_guard lock(lock_);
    any ? ++suspended_ : --suspended_;
    if (requests_ != nullptr) requests_->hold_requests(suspended_ != 0);
  }
  // The allocator ends.
  void detach() noexcept {
    const lock_guard lock(lock_);
    requests_ = nullptr;
  }

 private:
  mutex lock_;
  history_ring *requests_ STILLMAP_GUARDED_BY(lock_);
  std::size_t suspended_ STILLMAP_GUARDED_BY(lock_) = 0;  // reservations
};

}  // namespace stillmap
