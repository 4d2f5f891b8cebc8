// The kernel of chunk_digests.h as a host function, for the simulator, which has no PTX compiler and runs
// host functions in place of kernels. Two functions of its own, which its page on kernels describes:
//   register_kernel  binds a kernel's entry name to a host function
//   access           translates a device address for that function
#pragma once

#include <cstddef>

#include "stillmap/vmm/driver.h"

namespace stillmap::snapshot {

// The types of those functions.
namespace host_kernels {
struct launch {
  unsigned grid[3];
  unsigned block[3];
  void **params;
};
using kernel = void (*)(const launch *);
// Returns a CUresult.
using register_kernel = int (*)(const char *entry, kernel fn, unsigned param_count,
                                const std::size_t *param_bytes);
using access = void *(*)(unsigned long long at, std::size_t bytes, int write);
}  // namespace host_kernels

inline constexpr const char *kernel_name = "stillmap_chunk_digests";

// Registers the kernel with a driver that exports these functions; otherwise does nothing.
void register_host_kernel(const driver &drv) noexcept;

}  // namespace stillmap::snapshot
