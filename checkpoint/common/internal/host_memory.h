// Pinned host memory, which copy engines reach without a detour: one allocation.
#pragma once

#include <cstddef>
#include <utility>

#include "stillmap/vmm/device.h"

namespace stillmap::checkpoint {

// Owner. Threads: externally synchronised.
class host_memory {
 public:
  host_memory() = default;  // of no bytes
  // Errors: out_of_memory (the host's), the driver's. Cost: one call, and the host's time to pin.
  static result<host_memory> create(const device &d, std::size_t bytes);
  host_memory(host_memory &&o) noexcept { swap(o); }
  host_memory &operator=(host_memory &&o) noexcept {
    swap(o);  // `o` leaves with what was here, and frees it
    return *this;
  }
  ~host_memory();

  std::byte *data() const { return at_; }
  std::size_t bytes() const { return bytes_; }

 private:
  host_memory(const device &d, std::byte *at, std::size_t bytes)
      : device_(d.shared()), at_(at), bytes_(bytes) {}
  void swap(host_memory &o) {
    std::swap(device_, o.device_);
    std::swap(at_, o.at_);
    std::swap(bytes_, o.bytes_);
  }
  std::shared_ptr<device::state> device_;  // whose context it is pinned in
  std::byte *at_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace stillmap::checkpoint
