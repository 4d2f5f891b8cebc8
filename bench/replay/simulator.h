// What a replay asks of the simulator beyond CUDA's calls: settings, memory counters, modelled costs,
// violations. Nothing else in this folder depends on which driver that is. On other drivers the counters
// are absent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/device.h"

namespace stillmap::replay {

// Configures the simulator for a replay: the environment's settings, then `profile` unless it is empty;
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
// What one call costs by the table that become_machine() gives the simulator, for what is modelled without
// calling it.
struct call_cost {
  double fixed_ns = 0, ns_per_mib = 0;
};
call_cost modelled_cost(const std::string &function);
// All calls of this process, those that other libraries make too; those without a driver_call are
// left out.
driver_counts counts_of_process(const driver &drv);
// Makes `bytes` of a device's memory unavailable; 0: none. False: refused, or not the simulator.
bool occupy(const device &d, std::size_t bytes);

}  // namespace stillmap::replay
