// How much a test tries where more is always possible. Under a sanitizer, which is slow and looks for what
// the code does wrong on the way, and on a profile that repeats another one, a sample of it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace stillmap::testing {

// The sanitizer that the tests run under, ./test --asan and so on: "memory" (addresses, undefined
// behaviour), "thread", or empty.
inline std::string_view sanitizer() {
  const char *const under = std::getenv("STILLMAP_SANITIZER");
  return under != nullptr ? under : "";
}

// Whether hostcuda is a machine that differs from others in what the driver can do and in what undoes a
// failed call: with virtual memory management, with that of the first drivers, and with none. Further
// devices and what the system refuses change neither.
inline bool differs_in_calls() {
  const char *const config = std::getenv("HOSTCUDA");
  const std::string_view profile = config != nullptr ? config : "";
  return profile == "profile=h200" || profile == "profile=old-driver-450" ||
         profile == "profile=vgpu-no-vmm";
}

// One of so many points of a sweep is tried: all, or one of `sample`.
inline std::uint64_t sweep_stride(std::uint64_t sample) {
  return sanitizer().empty() && differs_in_calls() ? 1 : sample;
}

}  // namespace stillmap::testing
