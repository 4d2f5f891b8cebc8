// How many operations a model performs: fewer under a sanitizer, more where the run has time.
#pragma once

#include <cstddef>
#include <cstdlib>

#include "tests/support/effort.h"

namespace stillmap::testing {

inline std::size_t some_of(std::size_t operations) {
  if (std::getenv("STILLMAP_MODEL_SECONDS") != nullptr) return operations * 40;
  return operations / (sanitizer().empty() ? 1 : 10);
}

}  // namespace stillmap::testing
