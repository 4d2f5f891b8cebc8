// One GPU (or one that hostcuda plays), probed once: what it can do, and what stands in where it
// cannot. The root of everything else: a device owns its context, its ledger and its page pool.
// docs/design.md#devices-and-fallbacks
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "stillmap/vmm/context.h"
#include "stillmap/vmm/driver.h"

namespace stillmap {

class address_space;
class page_pool;

// What probing found. "Really": tried, not believed from an attribute; drivers advertise more than
// they do (docs/design.md#devices-and-fallbacks lists the lies known).
struct capabilities {
  bool vmm = false;            // reserve + create + map + set-access of one page really works
  std::size_t page_bytes = 0;  // minimum granularity; 2 MiB where VMM is absent
  std::size_t recommended_page_bytes = 0;
  bool posix_fd_export = false;  // a page really exported
  bool fabric_export = false;    // a page really exported
  bool rdma = false;             // a page created RDMA-capable really mapped
  bool host_numa = false;        // a host-NUMA page really mapped
  bool memory_pools = false;     // cuMemAllocAsync works
  bool wsl = false;
  std::size_t largest_reservation = 0;  // bytes; found by trying, halving from the default
  std::size_t mapping_ceiling = 0;      // mappings this process dares to hold (see address_space)
  std::vector<int> peers;               // devices that can reach this one's memory
};

// A handle to shared per-process state; copies are cheap and equal. The state lives while any
// handle, buffer or pool of it lives; then the context is released.
// Threads: safe.
class device {
 public:
  // Copying is all there is: a device that was moved from is the device still.
  device(const device &) = default;
  device &operator=(const device &) = default;

  // The device `ordinal` of the process's driver, probed on first use.
  // Errors: invalid_argument (no such device: limit = how many there are), not_supported (no
  //         driver), the driver's. Cost: first time some twenty calls and one page; later none.
  static result<device> open(int ordinal = 0);
  static result<device> open(stillmap::driver &drv, int ordinal);
  static result<int> count();

  int ordinal() const;
  const std::string &name() const;
  std::array<unsigned char, 16> uuid() const;
  physical_size total_memory() const;
  const stillmap::capabilities &capabilities() const;
  const stillmap::driver &driver() const;
  context_handle context() const;

  address_space &space() const;             // the ledger
  std::shared_ptr<page_pool> pool() const;  // the default pool: device memory, not exportable

  result<memory_info> memory() const;  // cuMemGetInfo: one call and the context switch

  bool operator==(const device &other) const { return state_ == other.state_; }

  struct state;
  const std::shared_ptr<state> &shared() const { return state_; }

 private:
  explicit device(std::shared_ptr<state> s) : state_(std::move(s)) {}
  friend class page_pool;
  friend class address_space;
  std::shared_ptr<state> state_;
};

}  // namespace stillmap
