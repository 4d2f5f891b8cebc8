#include "stillmap/checkpoint/process/blockers.h"

#include <algorithm>
#include <cstdio>
#include <unordered_set>

#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/physical_memory.h"

namespace stillmap::process {

std::vector<blocker> find_blockers(std::span<const device> devices) {
  std::vector<blocker> out;
  for (const device &d : devices) d.space().collect(true);
  std::vector<physical_handle> unmapped;  // imports that no mapping was found for yet
  if (!devices.empty()) unmapped = devices.front().driver().imports();
  for (const device &d : devices) {
    if (unmapped.empty()) break;
    const std::vector<physical_handle> imports = d.driver().imports();
    std::unordered_set<std::uint64_t> seen;  // page ids
    for (const mapping_record &m : d.space().mappings()) {
      if (!m.backing) continue;
      const physical_handle h = m.backing->handle();
      if (std::find(imports.begin(), imports.end(), h) == imports.end()) continue;
      const auto block = d.space().block_at(m.range.begin);
      out.push_back({m.backing->imported() ? blocker_kind::imported : blocker_kind::handed_off,
                     d.ordinal(), m.range, block ? block->tag() : std::string(), -1});
      if (!seen.insert(m.backing->id()).second) continue;
      if (const auto at = std::find(unmapped.begin(), unmapped.end(), h); at != unmapped.end()) {
        unmapped.erase(at);
      }
    }
  }
  for (std::size_t i = 0; i < unmapped.size(); ++i) {
    out.push_back({blocker_kind::imported_handle, -1, {}, {}, -1});
  }
  for (const int fd : exported_fds()) {
    out.push_back({blocker_kind::exported_fd, -1, {}, {}, fd});
  }
  return out;
}

std::string describe(const blocker &b) {
  if (b.kind == blocker_kind::exported_fd) {
    return "file descriptor " + std::to_string(b.fd) + " of exported memory is open";
  }
  if (b.kind == blocker_kind::imported_handle) {
    return "memory of another process is imported but mapped nowhere";
  }
  char text[128];
  std::snprintf(text, sizeof text, "device %d, 0x%llx: %.1f MiB of tag \"", b.device,
                static_cast<unsigned long long>(b.range.begin.value()),
                static_cast<double>(b.range.bytes) / (1 << 20));
  return text + b.tag +
         (b.kind == blocker_kind::imported ? "\" belong to another process"
                                           : "\" were handed off by another process");
}

}  // namespace stillmap::process
