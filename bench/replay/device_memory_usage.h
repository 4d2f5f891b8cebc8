// Memory counters, modelled costs and violations of hostcuda, and a limit on a device's memory. On
// other drivers the counters are absent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/device.h"

namespace stillmap::replay {

// Configures hostcuda for a replay: the environment's settings, then `profile` unless it is empty;
// unbacked memory unless `keep_bytes`; a cost table unless one is set. No effect on other drivers.
// Requires: no device is open.
// Errors: invalid_argument (a profile on another driver, or an unknown one).
status become_machine(driver &drv, const std::string &profile, bool keep_bytes);

// Empty, or 0, on drivers without these counters.
std::optional<std::uint64_t> physical_bytes(const driver &drv);
std::optional<std::uint64_t> physical_peak(const driver &drv);
std::uint64_t violations(const driver &drv);
// The modelled costs of all calls so far; looks the function up once.
class modelled_time {
 public:
  explicit modelled_time(const driver &drv);
  std::optional<std::uint64_t> ns() const;

 private:
  void *get_;
};
// All calls of this process, those that other libraries make too; those without a driver_call are
// left out.
driver_counts hostcuda_counts(const driver &drv);

// Limits a device's memory during its lifetime: hostcuda simulates a smaller device; on a GPU the
// rest is allocated, unless the measured allocator enforces a limit itself.
class less_memory {
 public:
  // Errors: invalid_argument (more than is free); the driver's.
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
