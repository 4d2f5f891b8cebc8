// The fixture of every test that uses a driver.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "stillmap/vmm/device.h"
#include "stillmap/vmm/driver.h"

namespace stillmap::testing {

// Before each test: opens the process's driver, or skips and says why (STILLMAP_REQUIRE_GPU=1 makes
// that a failure, and takes no hostcuda for a GPU). A hostcuda starts afresh as the machine of the
// environment.
// After each test: nothing went to the error sink, and on hostcuda nothing is left behind and no
// work touched what it must not.
// A fixture derived from this one that holds devices, buffers or streams drops them in its own
// TearDown, before it calls this one's.
class device_test : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  stillmap::driver &driver() const { return *driver_; }
  bool on_hostcuda() const { return driver_->is_simulator(); }

  // The device, or the test stops.
  device open_device(int ordinal = 0) const;

  // Starts hostcuda again as another machine, in the middle of a test.
  void become(const char *config) const;

  // The test breaks the rules on purpose.
  void expect_violations() { violations_expected_ = true; }
  // The test makes giving something back fail: that is reported, and what could not be given back
  // stays behind.
  void expect_unreturnable() { unreturnable_expected_ = true; }

  // The test expected the background errors that there were until now.
  void accept_background_errors() { unreported_before_ = background_error_count(); }

  // What is left behind on hostcuda right now, one line each; empty when nothing is. No other
  // driver tells: empty.
  static std::string leftovers();

 private:
  stillmap::driver *driver_ = nullptr;
  std::uint64_t unreported_before_ = 0;
  bool violations_expected_ = false;
  bool unreturnable_expected_ = false;
};

}  // namespace stillmap::testing

// Stops the test, saying why, on a driver that cannot be told what to do.
#define STILLMAP_NEEDS_HOSTCUDA() \
  if (!on_hostcuda()) GTEST_SKIP() << "needs hostcuda's switches"

// Fails the test with the message of a status or result that is an error.
#define ASSERT_DONE(outcome)                       \
  do {                                             \
    const auto &done_ = (outcome);                 \
    ASSERT_TRUE(done_) << done_.error().message(); \
  } while (false)
