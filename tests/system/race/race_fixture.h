// Shared by the race tests: a small machine with a random schedule, threads that start together, and the
// first failure of any of them.
#pragma once

#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "stillmap/vmm/context.h"
#include "stillmap/vmm/growable_buffer.h"
#include "tests/support/gpu_test.h"
#include "tests/support/hostcuda_control.h"
#include "tests/support/op_sequence.h"

namespace stillmap::testing {

class race_test : public device_test {
 protected:
  void SetUp() override {
    device_test::SetUp();
    if (!IsSkipped() && !HasFatalFailure() && !on_hostcuda()) {
      GTEST_SKIP() << "only hostcuda's oracle sees a race of device work; this driver is none";
    }
  }

  // The profile of the environment with `more` on top, ready for device::open.
  void machine(const std::string &more) const { become(machine_config(more).c_str()); }

  // Schedules to try: streams as threads, delayed at random, and in seeded orders. Seeded schedules
  // come last and `also_seeded` asks for them: they suit one host thread.
  static std::vector<std::string> schedules(std::uint64_t seeds, bool also_seeded) {
    std::vector<std::string> out{"schedule=threads"};
    const std::uint64_t first = seed_of_run(1);
    for (std::uint64_t s = first; s < first + seeds; ++s) {
      out.push_back("schedule=jitter:" + std::to_string(s) + ",jitter_us=100");
      if (also_seeded) out.push_back("schedule=seeded:" + std::to_string(s));
    }
    return out;
  }

  // Runs `body(i)` on `n` threads that start together. A body returns what went wrong, or nothing.
  static void together(std::size_t n, const std::function<std::string(std::size_t)> &body) {
    std::barrier<> start(static_cast<std::ptrdiff_t>(n));
    std::mutex mutex;
    std::string first;
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < n; ++i) {
      threads.emplace_back([&, i] {
        start.arrive_and_wait();
        const std::string wrong = body(i);
        if (wrong.empty()) return;
        const std::lock_guard lock(mutex);
        if (first.empty()) first = "thread " + std::to_string(i) + ": " + wrong;
      });
    }
    for (std::thread &t : threads) t.join();
    EXPECT_EQ(first, "");
  }

  static std::string first_violation() {
    const auto seen = hostcuda_control::violations();
    if (seen.empty()) return "";
    return std::string(seen.front().first) + "\n  broken by: " + seen.front().second;
  }
};

// Fills `bytes` at `at` on `s`, and reads them back later.
inline status fill(const device &d, device_address at, std::size_t bytes, unsigned char value,
                   stream_ref s) {
  const context_guard guard(d.driver(), d.context());
  return d.driver().set_bytes_async(at, value, bytes, s.get());
}

// Whether `bytes` at `at` are all `value`, once `s` is there. An error counts as no.
inline bool holds(const device &d, device_address at, std::size_t bytes, unsigned char value,
                  stream_ref s) {
  const context_guard guard(d.driver(), d.context());
  std::vector<unsigned char> got(bytes);
  if (!d.driver().copy_to_host_async(got.data(), at, bytes, s.get())) return false;
  if (!d.driver().synchronize_stream(s.get())) return false;
  for (const unsigned char b : got) {
    if (b != value) return false;
  }
  return true;
}

}  // namespace stillmap::testing
