// The capabilities of a device, as found by probing it. docs/driver.md#devices-and-fallbacks
#pragma once

#include <cstddef>
#include <vector>

namespace stillmap {

// The features of one device. "Tested" means that the probe performed the operation: some drivers
// advertise more than they support.
struct capabilities {
  bool vmm = false;            // reserve, create, map and set-access of one page: tested
  std::size_t page_bytes = 0;  // minimum granularity; 2 MiB where VMM is absent
  std::size_t recommended_page_bytes = 0;
  bool posix_fd_export = false;  // exporting a page: tested
  bool fabric_export = false;    // exporting a page: tested
  bool rdma = false;             // mapping an RDMA-capable page: tested
  bool host_numa = false;        // mapping a host-NUMA page: tested
  bool memory_pools = false;     // cuMemAllocAsync works
  bool integrated = false;       // shares the host's memory (GB10, Jetson): it has none of its own
  bool wsl = false;
  std::size_t largest_reservation = 0;  // bytes; found by trying ever smaller sizes
  std::size_t mapping_ceiling = 0;      // most mappings at once (see address_space)
  std::vector<int> peers;               // devices that can reach this one's memory
};

}  // namespace stillmap
