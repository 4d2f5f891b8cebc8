#include "stillmap/allocators/kv/internal/create_pool.h"

#include <algorithm>

#include "stillmap/vmm/base/try.h"

namespace stillmap::kv {

status choose_pool(const device &d, std::shared_ptr<page_pool> &pool) {
  if (!d.capabilities().vmm) {
    return make_error(errc::not_supported,
                      "the device has no virtual memory management: allocate the cache at once");
  }
  if (pool) {
    if (pool->properties().location == on_device(d.ordinal())) return {};
    return make_error(errc::invalid_argument, "the pool's memory is not the device's");
  }
  STILLMAP_ASSIGN_OR_RETURN(pool, page_pool::create(d, {.keep_free = SIZE_MAX}));
  return {};
}

result<std::size_t> missing_memory(const device &d, const page_pool &pool, std::size_t bytes) {
  const std::size_t free = pool.stats().free.bytes();
  if (bytes <= free) return std::size_t{0};
  const std::size_t more = bytes - free;
  STILLMAP_ASSIGN_OR_RETURN(const std::size_t allowed, pool.creatable(more));
  STILLMAP_ASSIGN_OR_RETURN(const memory_info info, d.memory());
  return more - std::min({more, allowed, info.free.bytes()});
}

}  // namespace stillmap::kv
