// A limit on a device's memory.
#pragma once

#include <cstdint>
#include <optional>

#include "stillmap/vmm/device.h"

namespace stillmap::replay {

// Limits a device's memory during its lifetime: the simulator describes a smaller device; on a GPU
// the rest is allocated, unless the measured allocator enforces a limit itself.
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
