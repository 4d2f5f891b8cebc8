// Chooses a driver and a device, and queries the memory of the machine and of hostcuda.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

struct driver_options {
  std::string driver;
  int device = 0;
};

// `which`: "cuda", "host", a path, or empty: STILLMAP_DRIVER where it is set, else a GPU where
// there is one, else hostcuda.
// Errors: exit_not_found, with what was tried and what to do.
outcome<driver *> choose_driver(const std::string &which);
// Errors: exit_not_found (no such device), the driver's.
outcome<device> open_device(driver &drv, int ordinal);
outcome<device> open_device(const driver_options &o);

// "the GPU NVIDIA H200", "hostcuda, a CUDA driver on host memory".
std::string describe(const driver &drv, const device &d);
std::string version_text(int version);  // "13.0"

// The driver's own counter; empty where it has none (on a GPU).
std::optional<std::uint64_t> bytes_copied_on_device(const driver &drv);

// Writes the counts of calls that were made, by name, as an object.
void write_calls(json_writer &json, std::string_view key, const driver_counts &counts);

// Whether device memory holds what is written to it: false on a hostcuda that is `unbacked`.
bool keeps_content(const driver &drv);

}  // namespace stillmap::tool
