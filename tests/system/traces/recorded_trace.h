// The recorded programs of bench/traces/, for tests that replay them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "bench/replay/replay.h"
#include "bench/replay/trace_file.h"
#include "tests/support/buffer_test.h"

namespace stillmap::testing {

class recorded_trace_test : public device_test {
 protected:
  // Starts hostcuda so configured; skips the test on another driver.
  void begin(const std::string &config) {
    device_test::SetUp();
    if (IsSkipped()) return;
    if (!on_hostcuda()) GTEST_SKIP() << "needs hostcuda";
    become(config.c_str());
  }

  // `iterations`: none: as recorded.
  static void plan(const char *trace, std::optional<unsigned> iterations,
                   std::optional<replay::replay_plan> &out) {
    const std::string file = std::string("bench/traces/") + trace + ".trace.zst";
    ASSERT_TRUE(std::filesystem::exists(file)) << "run from the top of the source";
    const auto read = replay::load_trace(file);
    ASSERT_TRUE(read) << read.error().message();
    auto planned = replay::plan_replay(*read, iterations);
    ASSERT_TRUE(planned) << planned.error().message();
    out = std::move(*planned);
  }

  // So many times the peak of live bytes.
  static std::uint64_t capacity(const replay::replay_plan &plan, double times) {
    return static_cast<std::uint64_t>(std::ceil(times * static_cast<double>(plan.peak_live_bytes)));
  }
};

}  // namespace stillmap::testing
