// The fixture of the sweeps: a clean machine for each operation, and what is left of it afterwards.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tests/system/fault/sweep.h"

namespace stillmap::testing {

// "h200", of "profile=h200,memory=..."
std::string simulated_profile();

class operation_sweep : public device_test, public ::testing::WithParamInterface<operation> {
 protected:
  void SetUp() override;
  void TearDown() override;

  const operation &op() const { return GetParam(); }
  // A clean machine, with the device open where the operation does not open it itself.
  void start();
  std::unique_ptr<bench> set();
  void drop(std::unique_ptr<bench> &w);
  // What is held of the driver, events aside: those are kept for the next fence.
  std::string counted();
  // Runs the operation without a failure: sets before_ and after_. Returns the calls it made.
  driver_counts learn();

  std::optional<device> device_;
  bool vmm_ = false;
  std::string baseline_, before_, after_;
};

// Names a case after its operation.
std::string case_name(const ::testing::TestParamInfo<operation> &each);

}  // namespace stillmap::testing
