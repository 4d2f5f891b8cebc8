// A handle to one GPU, or to one that the simulator describes. Opening a device probes its capabilities
// once. A device owns its primary context, its address space ledger and its default page pool.
// docs/driver.md#devices-and-fallbacks
#pragma once

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "stillmap/vmm/capabilities.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/driver.h"

namespace stillmap {

class address_space;
class page_pool;
struct device_state;

// A handle to state that the process shares; copies are cheap and compare equal. The state lives
// while any handle, buffer or pool of the device lives; then the context is released.
// Threads: safe.
class device {
 public:
  // Copies only: a device that was moved from stays a valid handle.
  device(const device &) = default;
  device &operator=(const device &) = default;

  // Opens device `ordinal` of the process's driver, and probes it on first use.
  // Errors: invalid_argument (no such device: limit = the number of devices), not_supported (no
  //         driver), the driver's errors.
  // Cost:   about twenty calls and one page the first time; none later.
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

  // Internal: the state that the handles share.
  explicit device(std::shared_ptr<device_state> s) : state_(std::move(s)) {}
  const std::shared_ptr<device_state> &shared() const { return state_; }

 private:
  std::shared_ptr<device_state> state_;
};

}  // namespace stillmap
