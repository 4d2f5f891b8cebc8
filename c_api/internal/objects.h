// What the handles of the C API stand for.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "stillmap/allocators/shared_quota.h"
#include "stillmap/c_api/internal/handles.h"
#include "stillmap/checkpoint/suspend/suspender.h"
#include "stillmap/vmm/buffer_options.h"
#include "stillmap/vmm/device.h"

namespace stillmap::c_api {

struct quota_object {
  std::shared_ptr<shared_quota> quota;
};

struct suspender_object {
  stillmap::device device;
  std::shared_ptr<checkpoint::suspender> suspender;
};

inline result<device *> find_device(const stillmap_device *handle) noexcept {
  return find<device>(handle, handle_kind::device);
}
inline result<quota_object *> find_quota(const stillmap_quota *handle) noexcept {
  return find<quota_object>(handle, handle_kind::quota);
}
inline result<suspender_object *> find_suspender(const stillmap_suspender *handle) noexcept {
  return find<suspender_object>(handle, handle_kind::suspender);
}

// Errors: those of read_struct; invalid_argument; those of page_pool::create.
result<buffer_options> options_of(const device &d, const stillmap_buffer_options *given);

}  // namespace stillmap::c_api
