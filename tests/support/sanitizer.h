// The sanitizer that the tests run under: ./test --asan and so on. It looks for what the code does wrong
// on the way, and is slow: a sweep that tries every point without one tries some of them with one.
#pragma once

#include <cstdlib>
#include <string_view>

namespace stillmap::testing {

// "memory" (addresses, undefined behaviour), "thread", or empty.
inline std::string_view sanitizer() {
  const char *const under = std::getenv("STILLMAP_SANITIZER");
  return under != nullptr ? under : "";
}

}  // namespace stillmap::testing
