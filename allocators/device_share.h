// The quota that the allocators of this process take part in for a device, by a name that its processes share: one for
// all of them. docs/sharing.md
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "stillmap/allocators/embedded_quota.h"
#include "stillmap/allocators/quota_types.h"
#include "stillmap/vmm/device.h"

namespace stillmap {

struct share_settings {
  std::string name{};  // of the quota for device 0: a file in /dev/shm, or a path. "": none
  // Bytes. It counts where nobody takes part in the quota yet; others keep to what is there. 0: that of the
  // existing quota, or the device's memory.
  std::uint64_t limit = 0;
  quota_terms terms{};  // of this process
};

// "gpu0", "gpu0:60GiB", "/run/gpu0:60G": what follows the last colon is the limit.
// Errors: invalid_argument; the subject is `variable`.
result<share_settings> parse_share(std::string_view text, const char *variable);

// "gpu0" for device 0 and "gpu0.1" for device 1, by CUDA's ordinals in this process.
std::string quota_name(const share_settings &s, int ordinal);

// Opens it, and starts its thread, unless an allocator of this process has it. It ends with its last allocator. What
// others use on the device counts as well (shared_quota_options::device).
// Errors:   those of shared_quota::open and start_thread; host memory.
// Requires: this is not a forked child. Threads: safe.
result<std::shared_ptr<embedded_quota>> share_device(const share_settings &s, const device &d);

// One that allocators of this process have for the device; nullptr: none. For what is brought back to them.
std::shared_ptr<embedded_quota> known_share(int ordinal);
// Its name; empty: there is none.
std::string known_share_name(int ordinal);

}  // namespace stillmap
