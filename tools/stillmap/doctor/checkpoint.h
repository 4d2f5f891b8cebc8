// The doctor's findings for each checkpoint module. Trying a feature and judging the result are
// separate functions, so that the judgement can be tested without the machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stillmap/checkpoint/base/host_room.h"
#include "stillmap/vmm/device.h"

namespace stillmap::tool {

enum class works { yes, limited, no };

// Whether a feature works here, why not, and the fix.
struct finding {
  std::string key;   // for programs
  std::string name;  // for people
  works does = works::yes;
  std::string says{};  // the fact, or the consequence of its absence
  std::string fix{};   // empty: none is needed, or none is known

  // The same feature with this judgement.
  finding judged(works state, std::string consequence, std::string remedy = {}) const {
    return {key, name, state, std::move(consequence), std::move(remedy)};
  }
};

// Suspend: contents are kept in pinned host memory, or in a file.
std::vector<finding> suspend_findings(const device &d);
finding suspend_room(std::uint64_t device_bytes, const checkpoint::host_room &host);
// For a device that shares the host's memory.
finding integrated_suspend_room();
// `tried`: bytes requested. `refused`: the error, empty: none. `limit`: bytes of locked memory.
finding pinned_memory(std::uint64_t tried, const std::string &refused,
                      std::optional<std::uint64_t> limit);

// Snapshots: digests computed by the device, io_uring and direct I/O.
finding device_digests(const device &d);
finding io_uring_here();
// `error`: of io_uring_setup, 0: none. `disabled`: kernel.io_uring_disabled, if known.
finding io_uring(int error, std::optional<int> disabled);
finding direct_io_here();

// Handoff: pages exported as file descriptors, or as fabric handles.
finding handoff(const capabilities &can);

// Migration: virtual memory management at both ends, and TLS 1.3.
finding migration_pages(const capabilities &can, bool digests);
finding migration_tls();

// Checkpoints of whole processes: the driver's part, and CRIU's.
finding driver_checkpoint(const driver &drv);
finding criu_here();
// `version`: of criu, empty: not installed. `kernel`: the release, as uname reports it.
finding criu(const std::optional<std::string> &version, const std::string &kernel);

}  // namespace stillmap::tool
