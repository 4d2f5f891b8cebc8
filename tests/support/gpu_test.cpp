#include "tests/support/gpu_test.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "tests/support/hostcuda_control.h"
#include "tests/support/small_machine.h"

namespace stillmap::testing {
namespace {

bool is_set_to(const char *name, std::string_view value) {
  const char *const text = std::getenv(name);
  return text != nullptr && text == value;
}
bool gpu_required() {
  return is_set_to("STILLMAP_REQUIRE_GPU", "1");
}
bool hostcuda_required() {
  return is_set_to("STILLMAP_DRIVER", "host");
}
// hostcuda leaves 512 MiB to the rest of the machine, and no test here needs more than this besides.
constexpr std::uint64_t needed_host_memory = (std::uint64_t{512} << 20) + (std::uint64_t{1} << 30);

// In bytes; nothing where the system does not tell.
std::optional<std::uint64_t> available_host_memory() {
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu kB", &kib) == 1) return kib << 10;
  }
  return std::nullopt;
}

// By an exception: after FAIL() a derived fixture's SetUp would go on, without a driver.
[[noreturn]] void end_test(const std::string &why) {
  throw std::runtime_error(why);
}

}  // namespace

void device_test::SetUp() {
  unreported_before_ = background_error_count();
  const auto loaded = driver::get();
  if (!loaded) {
    if (gpu_required()) end_test("STILLMAP_REQUIRE_GPU=1, but " + loaded.error().message());
    if (hostcuda_required()) end_test("STILLMAP_DRIVER=host, but " + loaded.error().message());
    GTEST_SKIP() << "no driver: " << loaded.error().message();
  }
  if ((*loaded)->is_simulator()) {
    const auto left = available_host_memory();
    if (left && *left < needed_host_memory) {
      GTEST_SKIP() << "the host has only " << (*left >> 20) << " MiB of memory left, and tests on "
                   << "hostcuda need " << (needed_host_memory >> 20) << " MiB";
    }
  }
  driver_ = *loaded;
  if (!on_hostcuda()) {
    if (hostcuda_required()) {
      end_test("STILLMAP_DRIVER=host, but " + driver_->path() + " is not hostcuda");
    }
    // A GPU's context takes a good part of a second to make, and each test opens the device anew.
    static const bool kept = driver_->retain_primary_context(0).has_value();
    ASSERT_TRUE(kept) << "device 0 has no primary context";
    return;
  }
  if (gpu_required()) end_test("STILLMAP_REQUIRE_GPU=1, but " + driver_->path() + " is hostcuda");
  hostcuda_control::reset();
  // A reset machine waits for cuInit, as any other.
  ASSERT_TRUE(driver_->initialise().has_value());
}

void device_test::TearDown() {
  if (driver_ == nullptr) return;
  if (!unreturnable_expected_) {
    EXPECT_EQ(background_error_count(), unreported_before_) << "failures that nobody was told of";
  }
  if (!on_hostcuda()) return;
  hostcuda_control::stop_failing(nullptr);
  if (!unreturnable_expected_) {
    EXPECT_EQ(leftovers(), "");
  }
  if (violations_expected_) return;
  for (const hostcuda_violation &v : hostcuda_control::violations()) {
    ADD_FAILURE() << "violation " << v.kind << " at " << v.at << ", " << v.bytes << " bytes\n  "
                  << v.first << "\n  " << v.second;
  }
}

device device_test::open_device(int ordinal) const {
  auto opened = device::open(*driver_, ordinal);
  if (!opened) throw std::runtime_error(opened.error().message());
  return *opened;
}

void device_test::become(const char *config) const {
  hostcuda_control::reset(config);
  if (const status s = driver_->initialise(); !s) throw std::runtime_error(s.error().message());
}

std::string device_test::leftovers() {
  return small_machine::leftovers();
}

}  // namespace stillmap::testing
