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

// Whether hostcuda is a machine on which the driver can do, and a failed call is undone, as on h200: its
// size, further devices and what the system refuses change neither.
inline bool repeats_a_profile() {
  const char *const config = std::getenv("HOSTCUDA");
  const std::string_view machine = config != nullptr ? config : "";
  return machine == "profile=a100" || machine == "profile=multi:2" || machine == "profile=wsl2" ||
         machine == "profile=mig";
}

// One of so many points of a sweep is tried: all, or one of `sample`.
inline std::uint64_t sweep_stride(std::uint64_t sample) {
  return sanitizer().empty() && !repeats_a_profile() ? 1 : sample;
}

}  // namespace stillmap::testing
