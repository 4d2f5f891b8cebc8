// The lock under which one thread at a time changes what memory an allocator has. It is held across driver calls;
// an arena's lock never is. Internal. docs/locks.md
#pragma once

#include <mutex>

#include "stillmap/vmm/base/mutex.h"

namespace stillmap {

// What the lock permits. clang compares names, and the mutex would have another one in each class that relies on
// it. So this does not tell two allocators apart.
class STILLMAP_CAPABILITY("growth") growth_role {};
inline constexpr growth_role growth;

class STILLMAP_SCOPED_CAPABILITY growth_lock {
 public:
  explicit growth_lock(std::mutex &m) STILLMAP_ACQUIRE(growth) : lock_(m) {}
  growth_lock(const growth_lock &) = delete;
  ~growth_lock() STILLMAP_RELEASE() {}

 private:
  const std::lock_guard<std::mutex> lock_;
};

// Tells the analysis what it cannot see: that a lambda is called by whoever holds the lock.
inline void assume_growing() STILLMAP_ASSERT_CAPABILITY(growth) {}

}  // namespace stillmap
