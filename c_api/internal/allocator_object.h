// The caching allocator behind a handle.
#pragma once

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/c_api/internal/handles.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::c_api {

// act(allocator) as the function with this name.
template <class Act>
stillmap_status with_allocator(const char *operation, const stillmap_allocator *handle,
                               Act act) noexcept {
  return enter(operation, [&]() -> status {
    STILLMAP_ASSIGN_OR_RETURN(caching_allocator *const a,
                              find<caching_allocator>(handle, handle_kind::allocator));
    return act(*a);
  });
}

}  // namespace stillmap::c_api
