// Linux's control groups of version 2, and their limits of device memory: the files of the controller dmem.
#pragma once

#include <string>

#include "stillmap/vmm/memory_limits.h"

namespace stillmap {

// What memory_limits_of() says for the device with this address ("0000:17:00.0"), where the process is in this group
// ("/jobs/7") of the folder. Allocates host memory: may throw std::bad_alloc.
memory_limits read_memory_limits(const std::string &groups, const std::string &group,
                                 const std::string &pci);

}  // namespace stillmap
