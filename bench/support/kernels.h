// The kernels of benchmarks, and one of the GPU tests: PTX that every driver since CUDA 9 compiles,
// and host functions that hostcuda runs instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "stillmap/vmm/driver.h"

namespace stillmap::bench {

// Owns a module and some pinned memory of the current context. Threads: externally synchronised.
class kernels {
 public:
  // Requires: one context of `drv` is current from here to the destructor.
  static result<kernels> load(const driver &drv);
  kernels(kernels &&other) noexcept
      : drv_(other.drv_),
        module_(std::exchange(other.module_, nullptr)),
        flags_(std::exchange(other.flags_, nullptr)),
        busy_(other.busy_),
        fill_(other.fill_) {}
  kernels &operator=(kernels &&) = delete;
  ~kernels();

  // Writes 1, 2, 3, ... to the word at `at` until it is stopped, for `milliseconds` at most.
  // Returns when it runs. One at a time.
  status start_busy(device_address at, unsigned milliseconds, stream_handle on);
  void stop_busy() noexcept;
  status end_busy(stream_handle on);  // stops it, and waits

  // Writes `value` to all words of `range`.
  status fill(virtual_range range, std::uint32_t value, stream_handle on) const;

 private:
  explicit kernels(const driver &drv) : drv_(&drv) {}

  const driver *drv_;
  module_handle module_ = nullptr;
  std::uint32_t *flags_ = nullptr;  // [0]: stop, [1]: it runs
  function_handle busy_ = nullptr, fill_ = nullptr;
};

}  // namespace stillmap::bench
