#include "stillmap/checkpoint/process/blockers.h"

#include <algorithm>
#include <cstdio>
#include <unordered_set>

#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/physical_memory.h"

namespace stillmap::process {

std::vector<obstacle> obstacles(std::span<const device> devices) {
  std::vector<obstacle> out;
  if (!devices.empty()) {
    for (const device &d : devices) d.space().collect(true);
    std::vector<physical_handle> handles = devices.front().driver().imports();
    for (const device &d : devices) {
      if (handles.empty()) break;
      const std::vector<physical_handle> all = d.driver().imports();
      std::unordered_set<std::uint64_t> seen;  // pages
      for (const mapping_record &m : d.space().mappings()) {
        if (!m.backing) continue;
        const physical_handle h = m.backing->handle();
        if (std::find(all.begin(), all.end(), h) == all.end()) continue;
        const auto block = d.space().block_at(m.range.begin);
        out.push_back({m.backing->imported() ? obstacle_kind::imported : obstacle_kind::taken_over,
                       d.ordinal(), m.range, block ? block->tag() : std::string(), -1});
        if (!seen.insert(m.backing->id()).second) continue;
        if (const auto at = std::find(handles.begin(), handles.end(), h); at != handles.end()) {
          handles.erase(at);
        }
      }
    }
    for (std::size_t i = 0; i < handles.size(); ++i) {
      out.push_back({obstacle_kind::imported_handle, -1, {}, {}, -1});
    }
  }
  for (const int fd : exported_fds()) {
    out.push_back({obstacle_kind::exported_fd, -1, {}, {}, fd});
  }
  return out;
}

std::string describe(const obstacle &o) {
  if (o.kind == obstacle_kind::exported_fd) {
    return "file descriptor " + std::to_string(o.fd) + " is exported memory, and open";
  }
  if (o.kind == obstacle_kind::imported_handle) {
    return "memory of another process is held, and mapped nowhere";
  }
  char text[128];
  std::snprintf(text, sizeof text, "device %d, 0x%llx: %.1f MiB of tag \"", o.device,
                static_cast<unsigned long long>(o.range.begin.value()),
                static_cast<double>(o.range.bytes) / (1 << 20));
  return text + o.tag +
         (o.kind == obstacle_kind::imported ? "\" belong to another process"
                                            : "\" were taken over from another process");
}

}  // namespace stillmap::process
