// What every benchmark stands on: a driver, a fresh device for each case, and the numbers that say
// what growing really cost (bytes copied, driver calls, memory at the peak) beside the time.
#pragma once

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <optional>

#include "stillmap/vmm/growable_buffer.h"

namespace stillmap::bench {

using namespace stillmap::literals;

// tools/bench.sh --smoke: every case once and small, to see that it runs.
bool smoke();

// The driver all cases use: STILLMAP_DRIVER, or a GPU's where there is one, else hostcuda.
// Null, and said on stderr, where there is none.
driver *the_driver();

// Whether the driver is a GPU's.
bool on_gpu();

// How much memory a case is about: `here` where device memory is the host's, `gpu` on a GPU, for
// which that is nothing. STILLMAP_BENCH_GIB is another amount for a GPU.
std::size_t amount(std::size_t here, std::size_t gpu);

// Whether hostcuda holds real bytes. A GPU always does.
enum class memory_kind {
  backed,    // bytes are there: copies and first touches take their time
  lazy,      // they come when they are touched: more fits than the host has
  unbacked,  // only the books: any size fits, copies cost nothing
};

// As HOSTCUDA has it.
const char *name_of(memory_kind kind);

// What has been counted up to now.
struct tally {
  driver_counts counts;
  std::uint64_t first_touch_ns = 0;  // hostcuda: making host pages present and zero
};

// One case of a benchmark: a machine started for it (hostcuda) and device 0 of it. Not usable, with
// the reason in `state`, where that cannot be or `needs` bytes of memory are not there.
class session {
 public:
  session(benchmark::State &state, memory_kind kind, std::size_t needs);
  session(const session &) = delete;
  session &operator=(const session &) = delete;

  explicit operator bool() const { return device_.has_value(); }
  const device &dev() const { return *device_; }
  const stillmap::driver &driver() const { return device_->driver(); }

  tally now() const;
  // Counts from `before` until now go to the case's counters, per iteration: calls, bytes_copied.
  void add(const tally &before);
  // Takes the books of the case to its row. Call when its iterations are done.
  void report(double per = 1);

  // Ends the case with the error, in the words of the library.
  void fail(const error &e);
  bool check(const status &s) {
    if (!s) fail(s.error());
    return s.has_value();
  }
  template <class T>
  bool check(const result<T> &r) {
    if (!r) fail(r.error());
    return r.has_value();
  }

 private:
  benchmark::State &state_;
  memory_kind kind_;
  std::optional<device> device_;
  std::uint64_t calls_ = 0, copied_ = 0, first_touch_ns_ = 0, peak_before_ = 0;
};

// Seconds between two looks; what is not between two looks is not timed.
class stopwatch {
 public:
  void start() { began_ = clock::now(); }
  void stop() { total_ += clock::now() - began_; }
  double seconds() const { return std::chrono::duration<double>(total_).count(); }

 private:
  using clock = std::chrono::steady_clock;
  clock::time_point began_{};
  clock::duration total_{};
};

}  // namespace stillmap::bench
