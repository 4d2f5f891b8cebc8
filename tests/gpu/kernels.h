// The few kernels of the GPU tests: PTX that every driver since CUDA 9 compiles, and the host
// functions that stand for it on hostcuda, where the same tests run.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/buffer_test.h"

namespace stillmap::testing {

// A function of the driver under its exported name; its declaration gives the type, nothing is
// linked.
template <class Function>
Function *raw(const driver &drv, const char *name) {
  auto *const found = reinterpret_cast<Function *>(drv.symbol(name));
  if (found == nullptr) throw std::runtime_error(std::string(name) + " is missing");
  return found;
}
void check(CUresult r, const char *what);

class gpu_test : public buffer_test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Writes 1, 2, 3, ... to the word at `at` until `*stop` (pinned host memory) is not 0, or for
  // `seconds`.
  void launch_counting(device_address at, std::uint32_t *stop, unsigned seconds, stream_ref s);
  // Until it has begun to.
  void await_counting(device_address at) const;
  // Adds 1 to each of the words at `at`, as many as the word at `count` says.
  void launch_increment(device_address at, device_address count, stream_ref s);
  // Writes `value` to the word that the pointer at `pointer` points at.
  void launch_store_through(device_address pointer, std::uint32_t value, stream_ref s);

  void write(device_address at, std::uint32_t value) const;
  std::uint32_t read(device_address at) const;
  // Pinned host memory that the device can reach; freed by the fixture.
  std::uint32_t *pinned();
  void enter();

  const driver &cu() const { return drv(); }
  // Kernels are host functions here, and memory is the host's.
  bool runs_on_host() const { return cu().symbol("hostcuda_register_kernel") != nullptr; }

 private:
  void launch(CUfunction f, stream_ref s, void **params, unsigned blocks, unsigned threads);
  std::optional<context_guard> inside_;
  CUmodule module_ = nullptr;
  CUfunction counting_ = nullptr, increment_ = nullptr, store_through_ = nullptr;
  std::vector<void *> pinned_;
};

}  // namespace stillmap::testing
