// Limits of device memory that the driver keeps for this control group, and only NVML has. Read before a program starts, so
// that nothing loads NVML into it. docs/operating.md#limits-of-the-system
#pragma once

#include <string>
#include <vector>

namespace stillmap::tool {

struct driver_limits {
  std::string variable;            // "STILLMAP_PRELOAD_DEVICE_LIMITS=…"; empty: there are none
  std::vector<std::string> lines;  // for a person, one for each device that has some
};

// What cannot be read is no limit.
driver_limits read_driver_limits();

}  // namespace stillmap::tool
