// Limits that the system sets for a process's memory on a device: those of its control group. docs/operating.md
#pragma once

#include <cstdint>

#include "stillmap/vmm/device.h"

namespace stillmap {

// Bytes.
struct memory_limits {
  static constexpr std::uint64_t none = UINT64_MAX;
  // An allocation beyond it fails: for all processes of the group together.
  std::uint64_t hard = none;
  // Below it the memory is the group's for certain; beyond it, the system may evict it, or end processes.
  std::uint64_t soft = none;
  std::uint64_t used = 0;  // of the group with the hard limit; 0: unknown

  bool any() const { return hard != none || soft != none; }
};

// What Linux's controller dmem (6.14) has for this process's group and those above it: dmem.max, of which the smallest
// holds, and dmem.min of the innermost group that has one. CUDA's MPS v3 enforces both (CUDA 13.4: "MPS v3 Memory
// Partitioning" in NVIDIA's MPS manual, which names the regions nvidia/PCI/vidmem). What cannot be read is no limit.
// Where the kernel has no dmem, the driver keeps the limits, and only NVML has them: it is not asked here, because that
// would load and start it in each program. The driver refuses what is beyond its hard limit.
// Errors:  the driver's; host memory.
// Threads: safe.
// Cost:    no driver call where no group has a region of NVIDIA's, else three. It opens some files.
result<memory_limits> memory_limits_of(const device &d);

}  // namespace stillmap
