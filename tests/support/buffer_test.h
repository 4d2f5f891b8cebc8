// The fixture of tests that hold one device and put bytes into its memory.
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

// Bytes that tell where they are and who wrote them.
std::vector<unsigned char> pattern(std::size_t bytes, unsigned seed);

// Host-synchronous. A failure fails the test.
void put(const device &d, device_address at, const std::vector<unsigned char> &bytes);
std::vector<unsigned char> get(const device &d, device_address at, std::size_t bytes);
// Whether `pattern(bytes, seed)` is there; says where not.
::testing::AssertionResult holds(const device &d, device_address at, std::size_t bytes,
                                 unsigned seed);

// What an error says of itself: condition, operation, value and limit.
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
  // Everything of the device must have been dropped by then.
  void TearDown() override;

  const device &dev() const { return *device_; }
  // Skips, saying why, where the device cannot map pages.
  bool has_vmm() const { return device_->capabilities().vmm; }
  std::size_t page() const { return device_->capabilities().page_bytes; }
  growable_buffer make(buffer_options options = {}) const;
  // One of so many pages with pattern(.., seed) in them.
  growable_buffer filled(std::size_t pages, const char *tag, unsigned seed) const;
  stream make_stream() const;
  fence after(const stream &s) const;
  driver_counts counts() const { return driver().counts(); }
  // Leaves `pages` pages of memory free.
  void leave_free(std::size_t pages) const;
  // Starts again as another machine, with its device 0 open.
  void restart_as(const char *config);
  void close_device() { device_.reset(); }

 private:
  std::optional<device> device_;
};

}  // namespace stillmap::testing

// Stops the test, saying why, where there are no pages to map.
#define STILLMAP_NEEDS_VMM() \
  if (!has_vmm()) GTEST_SKIP() << "needs VMM, which this device does not have"
