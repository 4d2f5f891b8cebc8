// What the checkpoint modules need of a device and of the machine: an area each. What is found out
// by trying is apart from what is made of it, so that the latter can be tested without the machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stillmap/vmm/device.h"
#include "tools/stillmap/doctor/finding.h"

namespace stillmap::tool {

// Suspend: contents wait in pinned host memory, or in a file.
std::vector<finding> suspend_findings(const device &d);
finding host_room(std::uint64_t device_bytes, std::optional<std::uint64_t> host_bytes);
// `tried`: bytes that were asked for, `refused`: what the driver said. `limit`: of locked memory.
finding pinned_memory(std::uint64_t tried, const std::string &refused,
                      std::optional<std::uint64_t> limit);

// Snapshots: digests by the device, and files past the page cache.
finding device_digests(const device &d);
finding io_uring_here();
// What io_uring_setup said (0: it works), and kernel.io_uring_disabled, where it is known.
finding io_uring(int error, std::optional<int> disabled);
finding direct_io_here();

// Handoff: pages as file descriptors, and as fabric handles.
finding handoff(const capabilities &can);

// Migration: the same pages at the same addresses elsewhere, TLS 1.3 with both sides known.
finding migration_pages(const capabilities &can, bool digests);
finding migration_tls();

// The whole process: the driver's part, and CRIU's.
finding driver_checkpoint(const driver &drv);
finding criu_here();
// `version`: as criu tells it, empty: there is no criu. `kernel`: as uname has it.
finding criu(const std::optional<std::string> &version, const std::string &kernel);

}  // namespace stillmap::tool
