// The search paths of driver libraries.
#pragma once

#include <string>
#include <vector>

namespace stillmap::driver_search {

// What to try for STILLMAP_DRIVER=cuda and =host, best first.
std::vector<std::string> system_candidates();
std::vector<std::string> simulator_candidates();

// How to install the simulator where this code is part of a Python package; else empty.
std::string simulator_advice();

// The file name of a machine's driver.
inline constexpr const char *soname = "libcuda.so.1";

}  // namespace stillmap::driver_search
