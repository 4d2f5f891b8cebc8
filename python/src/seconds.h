// Times that Python gives, in seconds.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "python/src/errors.h"

namespace stillmap::python {

// Raises InvalidArgumentError for what is no number of seconds, 0 or more. With the GIL.
inline std::chrono::milliseconds milliseconds_of(const char *operation, double seconds) {
  constexpr double most = 1e8;  // three years; a clock does not overflow
  if (!(seconds >= 0)) raise_invalid(operation, "a time is not a number of seconds, 0 or more");
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::min(seconds, most) * 1000));
}

}  // namespace stillmap::python
