// Device 0 of the driver, entered anew for each part, so that no part inherits the state that
// another one left in the driver.
#pragma once

#include <cstddef>
#include <string>

#include "bench/costs/owned.h"
#include "stillmap/vmm/driver.h"

namespace stillmap::costs {

// The memory of hostcuda. Without effect on a GPU.
enum class hostcuda_memory {
  unbacked,  // no bytes: any amount, at once
  lazy,      // bytes where they are touched: for parts that read, write or run a kernel
};

class machine {
 public:
  explicit machine(stillmap::driver &drv) : driver_(&drv) {}
  machine(const machine &) = delete;
  machine &operator=(const machine &) = delete;
  ~machine() { leave(); }

  status enter(hostcuda_memory kind);
  // Returns what was made since enter() and not given back, as a sentence; empty: nothing.
  std::string leave();

  const stillmap::driver &driver() const { return *driver_; }
  context_handle context() const { return context_; }
  std::string device_name() const;
  std::string hostcuda_config() const;  // empty on a GPU

  // Whether a page can be created, mapped and made accessible; the error says why not.
  const status &vmm() const { return vmm_; }
  std::size_t page() const { return page_; }  // granularity; 2 MiB without VMM
  // Bytes of device memory to use at most: a quarter of the device is left to other programs.
  std::size_t allowance() const { return allowance_; }
  // Bytes of pinned memory to use at most: an eighth of the host's available memory.
  static std::size_t pinned_allowance();

  result<own_stream> create_stream(bool non_blocking = true) const;
  // The steps that map a page.
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

// Memory at an address where access is allowed. Members are destroyed in the opposite order.
struct piece {
  addresses at;
  physical pages;
  mapping there;
  device_address begin() const { return at.get().begin; }
};
result<piece> make_piece(const machine &m, std::size_t bytes);

}  // namespace stillmap::costs
