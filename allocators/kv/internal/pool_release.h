// Bytes that a page pool gives back to the device, and how many of them it has not yet.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap::kv {

class pool_release {
 public:
  pool_release(page_pool &pool, std::size_t bytes)
      : pool_(pool), bytes_(bytes), before_(pool.stats().pages_released) {}

  std::size_t released() const {
    return (pool_.stats().pages_released - before_) * pool_.page_bytes();
  }
  std::size_t missing() const { return bytes_ - std::min(bytes_, released()); }
  // Of the free pages, no more than are missing. Errors: the driver's.
  status trim() const {
    const std::size_t free = pool_.stats().free.bytes(), most = std::min(free, missing());
    if (most == 0) return {};
    STILLMAP_RETURN_IF_ERROR(pool_.trim(free - most));
    return {};
  }

 private:
  page_pool &pool_;
  const std::size_t bytes_;
  const std::uint64_t before_;
};

}  // namespace stillmap::kv
