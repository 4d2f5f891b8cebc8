// The quota that the heaps of this process take part in for a device: one for all of them. Internal.
#pragma once

#include <memory>
#include <string>

#include "stillmap/allocators/torch/internal/embedded_quota.h"
#include "stillmap/allocators/torch/internal/torch_settings.h"
#include "stillmap/vmm/device.h"

namespace stillmap::torch_plugin {

// "gpu0" for device 0 and "gpu0.1" for device 1, by CUDA's ordinals in this process.
std::string quota_name(const share_settings &s, int ordinal);

// Opens it, and starts its thread, unless a heap of this process has it. It ends with its last heap. What others
// use on the device counts as well (shared_quota_options::device).
// Errors:   those of shared_quota::open and start_thread; host memory.
// Requires: this is not a forked child. Threads: safe.
result<std::shared_ptr<embedded_quota>> share_device(const share_settings &s, const device &d);

// One that heaps of this process have for the device; nullptr: none. For what is brought back to them.
std::shared_ptr<embedded_quota> known_share(int ordinal);

}  // namespace stillmap::torch_plugin
