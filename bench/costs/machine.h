// Device 0 of the driver at hand, entered anew for each part, so that no part inherits what another
// left in the driver.
#pragma once

#include <cstddef>
#include <string>

#include "bench/costs/owned.h"
#include "stillmap/vmm/driver.h"

namespace stillmap::costs {

// What hostcuda's memory is made of. A GPU's is what it is.
enum class hostcuda_memory {
  unbacked,  // only books: any amount, at once
  lazy,      // bytes where they are touched: for what reads, writes, or runs a kernel
};

class machine {
 public:
  explicit machine(stillmap::driver &drv) : driver_(&drv) {}
  machine(const machine &) = delete;
  machine &operator=(const machine &) = delete;
  ~machine() { leave(); }

  status enter(hostcuda_memory kind);
  // Returns what is still there of what was made since enter(), as a sentence; empty: nothing.
  std::string leave();

  const stillmap::driver &driver() const { return *driver_; }
  context_handle context() const { return context_; }
  std::string device_name() const;
  std::string hostcuda_config() const;  // empty on a GPU

  // Whether a page could be made, mapped and allowed; why not.
  const status &vmm() const { return vmm_; }
  std::size_t page() const { return page_; }  // granularity; 2 MiB without VMM
  // What may be taken: a quarter of the device is left to others.
  std::size_t allowance() const { return allowance_; }
  // Of pinned memory: an eighth of what the host has.
  static std::size_t pinned_allowance();

  // One step of what maps a page; each gives back what it made.
  result<addresses> reserve(std::size_t bytes) const;
  result<physical> create(std::size_t bytes, handle_type exportable = handle_type::none) const;
  result<mapping> map(device_address at, std::size_t bytes, physical_handle pages) const;
  status allow(virtual_range range) const;

 private:
  stillmap::driver *driver_;
  int device_ = 0;
  context_handle context_ = nullptr;
  status vmm_;
  std::size_t page_ = 0, allowance_ = 0, free_before_ = 0;
};

// Memory at an address that may be touched. Members go in the opposite order.
struct piece {
  addresses at;
  physical pages;
  mapping there;
  device_address begin() const { return at.get().begin; }
};
result<piece> make_piece(const machine &m, std::size_t bytes);

}  // namespace stillmap::costs
