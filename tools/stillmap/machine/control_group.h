// The control group of this process, and how limits of its device memory are said.
#pragma once

#include <string>

#include "stillmap/vmm/memory_limits.h"

namespace stillmap::tool {

// The folder of version 2's hierarchy. Empty: this process has none.
std::string own_control_group();

// "at most 90 MiB for this control group (NVML), of which 5 MiB are used; 30 MiB are certain (NVML); beyond them, …".
// `hard` and `soft`: what says so.
std::string text_of(const memory_limits &l, const char *hard, const char *soft);

}  // namespace stillmap::tool
