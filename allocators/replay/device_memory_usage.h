// What hostcuda tells of itself and can be told, and a GPU cannot: its books, its oracle, its table
// of costs, how much memory it has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stillmap/vmm/device.h"
#include "stillmap/vmm/error.h"

namespace stillmap::replay {

// Starts hostcuda as the machine for a replay: as the environment says, then `profile` where it is
// not empty, without bytes unless `keep_bytes`, with a table of costs unless there is one. Does
// nothing on another driver. Before any device is open.
// Errors: invalid_argument: a profile on another driver, or one that there is not.
status become_machine(driver &drv, const std::string &profile, bool keep_bytes);

// Empty, 0: not on this driver.
std::optional<std::uint64_t> physical_bytes(const driver &drv);
std::optional<std::uint64_t> physical_peak(const driver &drv);
std::optional<std::uint64_t> modelled_ns(const driver &drv);
std::uint64_t violations(const driver &drv);

// While it lives, a device has only so much memory: hostcuda plays a smaller one; on a GPU the rest
// is taken, unless whoever is measured keeps to a limit by himself.
class less_memory {
 public:
  // Errors: invalid_argument: more than there is; the driver's.
  static result<less_memory> leave(const device &d, std::optional<std::uint64_t> bytes,
                                   bool keeps_to_limit);
  less_memory(less_memory &&o) noexcept;
  less_memory &operator=(less_memory &&) = delete;
  ~less_memory();

 private:
  explicit less_memory(const device &d) : device_(d) {}
  device device_;
  bool occupied_ = false;
  physical_handle ballast_ = physical_handle::none;
};

}  // namespace stillmap::replay
