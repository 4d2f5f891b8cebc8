// Kernels of the GPU tests: PTX for CUDA 9 and newer, and host functions that replace it on hostcuda,
// where the same tests run.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "bench/support/kernels.h"
#include "tests/support/buffer_test.h"

namespace stillmap::testing {

// Looks up a driver function by its exported name. Only its declaration is used; nothing is linked.
template <class Function>
Function *raw(const driver &drv, const char *name) {
  auto *const found = reinterpret_cast<Function *>(drv.symbol(name));
  if (found == nullptr) throw std::runtime_error(std::string(name) + " is missing");
  return found;
}
void check(CUresult r, const char *what);

// Fixture for devices with virtual memory management.
class gpu_test : public buffer_test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Starts a kernel that writes 1, 2, 3, ... to the word at `at` until stop_counting(), at most for
  // `seconds`. Returns once it counts. One at a time.
  void start_counting(device_address at, unsigned seconds, stream_ref s);
  void stop_counting();
  // Adds 1 to each of the words at `at`, as many as the word at `count` says.
  void launch_increment(device_address at, device_address count, stream_ref s);
  // Writes `value` to the word that the pointer at `pointer` points at.
  void launch_store_through(device_address pointer, std::uint32_t value, stream_ref s);

  growable_buffer zeros(std::size_t pages, buffer_options options) const;
  void write(device_address at, std::uint32_t value) const;
  std::uint32_t read(device_address at) const;
  void enter();

  const stillmap::driver &cu() const { return driver(); }
  // Kernels are host functions here, and memory is the host's.
  bool runs_on_host() const { return cu().symbol("hostcuda_register_kernel") != nullptr; }

 private:
  void launch(CUfunction f, stream_ref s, void **params, unsigned blocks, unsigned threads);
  std::optional<context_guard> inside_;
  CUmodule module_ = nullptr;
  std::optional<bench::kernels> counting_;
  CUfunction increment_ = nullptr, store_through_ = nullptr;
};

}  // namespace stillmap::testing
