// The fixture of tests that open one device and write to its memory.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "stillmap/vmm/growable_buffer.h"
#include "tests/support/gpu_test.h"
#include "tests/support/hostcuda_control.h"

namespace stillmap::testing {

// Bytes that encode their position and `seed`.
std::vector<unsigned char> pattern(std::size_t bytes, unsigned seed);

// Host-synchronous. A failure fails the test.
void put(const device &d, device_address at, const std::vector<unsigned char> &bytes);
std::vector<unsigned char> get(const device &d, device_address at, std::size_t bytes);
// Whether `pattern(bytes, seed)` is there; says where not.
::testing::AssertionResult holds(const device &d, device_address at, std::size_t bytes,
                                 unsigned seed);

// Whether `s` failed with this condition, operation, value and limit.
::testing::AssertionResult fails_with(const status &s, errc c, const char *operation);
::testing::AssertionResult fails_with(const status &s, errc c, const char *operation,
                                      std::uint64_t value, std::uint64_t limit);
template <class T>
status outcome(const result<T> &r) {
  return r ? status{} : tl::unexpected<error>(r.error());
}

// A device_test with device 0 open while the test runs.
class buffer_test : public device_test {
 protected:
  void SetUp() override;
  // Requires: the test has dropped everything of the device.
  void TearDown() override;

  const device &dev() const { return *device_; }
  bool has_vmm() const { return device_->capabilities().vmm; }
  std::size_t page() const { return device_->capabilities().page_bytes; }
  growable_buffer make(buffer_options options = {}) const;
  // A buffer of `pages` pages with pattern(.., seed).
  growable_buffer filled(std::size_t pages, const char *tag, unsigned seed) const;
  stream make_stream() const;
  fence after(const stream &s) const;
  driver_counts counts() const { return driver().counts(); }
  // Leaves `pages` pages of memory free.
  void leave_free(std::size_t pages) const;
  // Restarts hostcuda as another machine and opens its device 0.
  void restart_as(const char *config);
  void restart_with(const char *setting);  // as the same machine, but for one setting
  void close_device() { device_.reset(); }

 private:
  std::optional<device> device_;
};

}  // namespace stillmap::testing

// Skips the test on a device without VMM.
#define STILLMAP_NEEDS_VMM() \
  if (!has_vmm()) GTEST_SKIP() << "needs VMM, which this device does not have"
