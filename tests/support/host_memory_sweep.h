// Repeats an operation with each of its host allocations failing in turn.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>

#include "stillmap/vmm/base/error.h"
#include "tests/support/effort.h"
#include "tests/support/host_memory.h"
#include "tests/support/hostcuda_control.h"

namespace stillmap::testing {

// The allocations are the same on every profile. Requires hostcuda.
#define STILLMAP_ONE_PROFILE_DOES()                                                \
  if (stillmap::testing::hostcuda_control::config().rfind("profile=h200", 0) != 0) \
  GTEST_SKIP() << "the allocations are the same on every profile: one is enough"

inline bool has_time_for_all() {
  return std::getenv("STILLMAP_MODEL_SECONDS") != nullptr;
}
inline std::uint64_t sample_stride() {
  return has_time_for_all() ? 1 : sweep_stride(3);
}

struct allocation_sweep {
  std::size_t points = 0, refused = 0, survived = 0;

  allocation_sweep &operator+=(const allocation_sweep &o) {
    points += o.points;
    refused += o.refused;
    survived += o.survived;
    return *this;
  }
  // The line that ./test repeats.
  void note(const char *module, const char *more = "") const {
    std::printf("note: host allocation sweep of %s: %zu points%s%s; %zu refused, %zu survived\n",
                module, points, more, sample_stride() == 1 ? "" : " and one in three of these",
                refused, survived);
  }
};

// One allocation that fails, or all from that one on.
class failing_allocation {
 public:
  failing_allocation(std::uint64_t nth, bool all_after) : nth_(nth), all_after_(all_after) {}

  // Returns op(), a result or a status, with the allocation failing. An exception fails the test;
  // so does an error other than out_of_memory.
  template <class Op>
  auto operator()(const Op &op) -> std::invoke_result_t<Op> {
    fail_host_allocation failing(nth_, all_after_);
    try {
      auto out = op();
      failing.stop();
      happened_ = failing.happened();
      done_ = out.has_value();
      if (!done_ && happened_) {
        EXPECT_TRUE(out.error().is(errc::out_of_memory)) << out.error().message();
        EXPECT_STRNE(out.error().operation, "") << "it names no function";
      }
      if (!done_ && !happened_) ADD_FAILURE() << out.error().message();
      return out;
    } catch (const std::exception &e) {
      failing.stop();
      happened_ = true;
      ADD_FAILURE() << "an exception left the library: " << e.what();
      return tl::unexpected<error>(error{});
    }
  }

  bool happened() const { return happened_; }
  bool done() const { return done_; }

 private:
  std::uint64_t nth_;
  bool all_after_;
  bool happened_ = false, done_ = false;
};

// Each allocation where the run has time for all, and otherwise one of so many, or of three times as many
// where a sample will do.
inline std::uint64_t one_in(std::uint64_t n) {
  return has_time_for_all() ? 1 : n * sample_stride();
}

// The least number of points of a sweep that has at least so many where no sample will do.
inline std::size_t fewest_points(std::size_t n) {
  return n / sample_stride();
}

// Calls run(failing_allocation &) for the first, second, ... allocation, until the operation makes
// fewer, or a check has failed. With a stride, only for each so many.
template <class Run>
allocation_sweep fail_each_allocation(const Run &run, bool all_after = false,
                                      std::uint64_t stride = one_in(1)) {
  allocation_sweep sweep;
  for (std::uint64_t n = 0;; n += stride) {
    SCOPED_TRACE((all_after ? "all from allocation " : "allocation ") + std::to_string(n));
    failing_allocation point(n, all_after);
    run(point);
    if (!point.happened()) return sweep;
    ++sweep.points;
    ++(point.done() ? sweep.survived : sweep.refused);
    if (::testing::Test::HasFailure()) return sweep;
  }
}

// Makes an allocation of a thread of the library fail: the thread calls begin(), in a callback of the
// test, and is failing until it ends.
class failing_thread {
 public:
  // The next thread that begins is failing.
  void arm(std::uint64_t nth, bool all_after = false) {
    nth_ = nth;
    all_after_ = all_after;
    happened_ = false;
    armed_ = true;
  }
  void begin() {
    if (!armed_.exchange(false)) return;
    ++begun_;
    thread_local std::optional<until_end> now;
    now.emplace(*this);
  }
  // Waits until the thread has ended. Whether its allocation failed.
  bool happened() {
    armed_ = false;
    while (ended_ != begun_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return happened_;
  }
  // Allocations of the last thread, once it has ended.
  std::uint64_t allocations() const { return allocations_; }

 private:
  struct until_end {
    failing_thread &of;
    std::uint64_t before = host_allocations();
    fail_host_allocation failing;
    explicit until_end(failing_thread &f) : of(f), failing(f.nth_, f.all_after_) {}
    ~until_end() {
      failing.stop();
      of.allocations_ = host_allocations() - before;
      if (failing.happened()) of.happened_ = true;
      ++of.ended_;
    }
  };
  std::uint64_t nth_ = 0;
  bool all_after_ = false;
  std::atomic<bool> armed_{false}, happened_{false};
  std::atomic<std::uint64_t> allocations_{0};
  std::atomic<int> begun_{0}, ended_{0};
};

}  // namespace stillmap::testing
