// Pinned (page-locked) host memory: one allocation, for copies at full bandwidth.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "stillmap/vmm/device.h"

namespace stillmap::checkpoint {

// Owner. Threads: externally synchronised.
class host_memory {
 public:
  host_memory() = default;  // empty
  // Asks first whether the host has room: past the limit of a control group the kernel kills the
  // process. `advice`: the reason of the error.
  // Errors: out_of_memory (host memory: as check_host_room; or the driver refuses: value = bytes),
  //         the driver's.
  // Cost:   one cuMemHostAlloc, which takes time in proportion to the size, and some small files read.
  static result<host_memory> create(
      const device &d, std::size_t bytes,
      const char *advice =
          "the buffers do not fit into the host memory that is free: free some, or "
          "raise the limit");
  host_memory(host_memory &&o) noexcept { swap(o); }
  // By swapping: the destructor of `o` frees the memory that was here.
  host_memory &operator=(host_memory &&o) noexcept {
    swap(o);
    return *this;
  }
  ~host_memory();

  std::byte *data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void swap(host_memory &o) {
    std::swap(device_, o.device_);
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
  }
  std::optional<device> device_;  // the memory is pinned in its context
  std::byte *data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace stillmap::checkpoint
