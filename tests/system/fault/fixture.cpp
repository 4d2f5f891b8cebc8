#include "tests/system/fault/fixture.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace stillmap::testing {

std::string simulated_profile() {
  const std::string config = hostcuda_control::config();
  const std::size_t from = config.find('=') + 1;
  return config.substr(from, config.find(',') - from);
}

std::string case_name(const ::testing::TestParamInfo<operation> &each) {
  std::string name = each.param.name;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

::testing::AssertionResult names_what_failed(const operation &o, const error &e) {
  const std::string_view named = e.operation;
  std::string expected = o.calls;
  if (expected.empty()) {
    expected = o.name.substr(0, o.name.find(','));
    expected.replace(expected.find(' '), 1, "::");
  }
  if (named == expected || named.starts_with("cu")) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "not " << expected << ": " << e.message();
}

void operation_sweep::SetUp() {
  device_test::SetUp();
  if (IsSkipped() || HasFatalFailure()) return;
  if (!on_hostcuda()) GTEST_SKIP() << "needs a driver that can be told to fail";
  expect_unreturnable();
  start();
  if (op().vmm && !vmm_) GTEST_SKIP() << "needs VMM, which this device does not have";
}

void operation_sweep::TearDown() {
  device_.reset();
  device_test::TearDown();
}

void operation_sweep::start() {
  device_.reset();
  // The same machine, doing its work in an order that does not depend on threads: an operation
  // then makes the same calls every time.
  hostcuda_control::reset();
  std::string machine = hostcuda_control::config();
  const std::string threads = "schedule=threads";
  if (const std::size_t at = machine.find(threads); at != std::string::npos) {
    machine.replace(at, threads.size(), "schedule=seeded:1");
  }
  become(machine.c_str());
  device_ = open_device();
  vmm_ = device_->capabilities().vmm;
  if (op().own_device) device_.reset();
  // Once to the end: what is made once and kept (events) is there afterwards.
  std::unique_ptr<bench> w = set();
  if (vmm_ || !op().vmm) [[maybe_unused]]
    const status warm = op().run(*w);
  drop(w);
  baseline_ = counted();
}

std::unique_ptr<bench> operation_sweep::set() {
  auto w = std::make_unique<bench>(driver());
  w->dev = device_;
  if (vmm_ || !op().vmm) op().set(*w);
  return w;
}

void operation_sweep::drop(std::unique_ptr<bench> &w) {
  hostcuda_control::occupy(0, 0);
  w.reset();
  for (int i = 0; i < 8 && *driver().current_context() != nullptr; ++i) {
    ASSERT_TRUE(driver().pop_context());
  }
  if (!device_) return;
  device_->space().collect(true);
  ASSERT_TRUE(device_->pool()->trim());
}

std::string operation_sweep::counted() {
  const hostcuda_counters n = hostcuda_control::counters();
  std::string out;
  for (const auto &[what, value] : {std::pair{"handles", n.live_handles},
                                    {"mappings", n.live_mappings},
                                    {"reservations", n.live_reservations},
                                    {"streams", n.live_streams},
                                    {"bytes", op().own_device ? 0 : n.physical_bytes},
                                    {"violations", n.violations}}) {
    out += std::string(what) + " " + std::to_string(value) + "\n";
  }
  return out;
}

driver_counts operation_sweep::learn() {
  std::unique_ptr<bench> w = set();
  before_ = w->observe();
  drop(w);
  w = set();
  const driver_counts start_counts = driver().counts();
  const status ran = op().run(*w);
  const driver_counts spent = driver().counts() - start_counts;
  EXPECT_TRUE(ran) << (ran ? "" : ran.error().message());
  after_ = w->observe();
  drop(w);
  EXPECT_EQ(counted(), baseline_) << "left behind without any failure";
  return spent;
}

}  // namespace stillmap::testing
