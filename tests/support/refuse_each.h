// Repeats an operation with each of its driver calls failing in turn.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>

#include "tests/support/hostcuda_control.h"

namespace stillmap::testing {

// Calls `run` with the first, second, ... call of each name refused, until none is, or a check has
// failed. Returns how often `run` said that it was not done. Requires: the driver is a hostcuda.
template <class Run>
std::uint64_t refuse_each(std::span<const char *const> names, const Run &run) {
  std::uint64_t refused = 0;
  for (const char *const name : names) {
    for (std::uint64_t n = 1;; ++n) {
      SCOPED_TRACE(std::string(name) + ", number " + std::to_string(n));
      hostcuda_control::faults_fired();
      hostcuda_control::fail(name, n, CUDA_ERROR_OUT_OF_MEMORY);
      const bool done = run();
      hostcuda_control::stop_failing(name);
      if (hostcuda_control::faults_fired() == 0) break;
      refused += done ? 0 : 1;
      if (::testing::Test::HasFailure()) return refused;
    }
  }
  return refused;
}

}  // namespace stillmap::testing
