// What NVML says of the memory of this machine's GPUs: of each device, and of each process on it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stillmap/vmm/memory_limits.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

struct process_usage {
  std::uint32_t pid = 0;               // in NVML's PID namespace: the host's
  std::optional<std::uint64_t> bytes;  // nullopt: the driver does not say, as in some containers
};

struct device_usage {
  std::string uuid;  // "GPU-1f3b…", or "MIG-…"
  std::string name;
  std::uint64_t total = 0, used = 0;  // bytes
  std::vector<process_usage> processes;
};

// As NVML writes it: "GPU-01020304-0506-0708-090a-0b0c0d0e0f10".
std::string uuid_text(const std::array<unsigned char, 16> &uuid);

// NVML, loaded when it is opened. Threads: one at a time.
class nvml {
 public:
  // Errors: exit_not_found (there is no NVML, or it does not start: no driver).
  static outcome<std::unique_ptr<nvml>> open();
  // The same where it has memory limits. Errors: also exit_not_found (it is of before CUDA 13.4; it is not started).
  static outcome<std::unique_ptr<nvml>> open_with_limits();
  ~nvml();
  nvml(const nvml &) = delete;

  // All devices, in NVML's order. A device that does not answer is left out.
  std::vector<device_usage> devices() const;
  // Of the device with this UUID, for the control group with this folder, or the nearest one above it that has limits:
  // also where the driver keeps them, as on kernels without the controller dmem. Without limits, or with an NVML of
  // before CUDA 13.4: none.
  memory_limits limits_of(const std::string &uuid, const std::string &group) const;
  // Of all devices that have some, by UUID.
  std::vector<std::pair<std::string, memory_limits>> all_limits(const std::string &group) const;

 private:
  struct functions;
  static outcome<std::unique_ptr<nvml>> open(bool needs_limits);
  explicit nvml(std::unique_ptr<functions> f);
  std::unique_ptr<functions> call_;
};

}  // namespace stillmap::tool
