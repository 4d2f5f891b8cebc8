// The base of every benchmark: a driver, a new device for each case, and the costs beside the time
// (bytes copied, driver calls, peak memory).
#pragma once

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "bench/support/host.h"
#include "stillmap/vmm/growable_buffer.h"

namespace stillmap::bench {

using namespace stillmap::literals;

// tools/bench.sh --smoke: every case once and small, to see that it runs.
bool smoke();

// The driver of all cases (find_driver). nullptr, with the reason on stderr, if there is none.
driver *the_driver();

// Whether the driver is a GPU's.
bool on_gpu();

// Bytes of memory that a case uses: `here` where device memory is the host's, `gpu` on a GPU,
// unless STILLMAP_BENCH_GIB says another amount.
std::size_t amount(std::size_t here, std::size_t gpu);

// The memory of hostcuda. Without effect on a GPU.
enum class memory_kind {
  backed,    // real bytes: copies and first touches take their time
  lazy,      // bytes where they are touched: may be larger than the host's memory
  unbacked,  // no bytes: any size fits, copies cost nothing
};

// The setting of HOSTCUDA.
const char *name_of(memory_kind kind);

// The counters of the driver at one moment.
struct tally {
  driver_counts counts;
  std::uint64_t first_touch_ns = 0;  // hostcuda: making host pages present and zero
};

// One case of a benchmark: hostcuda restarted for it, and device 0. Not usable, with the reason in
// `state`, if that fails or less than `needs` bytes of memory are free.
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
  // Writes the counters of the case to its row. Call it after the iterations.
  void report(double per = 1);

  // Ends the case with the error's message.
  void fail(const error &e);
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

// A buffer of `bytes` bytes that cannot grow.
result<growable_buffer> make_buffer(const device &d, std::size_t bytes,
                                    const std::string &tag = {});
// The byte that write_bytes() writes.
inline constexpr unsigned char written_byte = 0x5a;
// Writes to memory of `d`, and waits.
status write_bytes(const device &d, device_address at, std::size_t bytes);

// The sum of the times between start() and stop().
class stopwatch {
 public:
  void start() { began_ = clock::now(); }
  void stop() { total_ += clock::now() - began_; }
  // Adds the time of a call, and returns its result.
  template <class Call>
  auto time(Call &&call) {
    start();
    if constexpr (std::is_void_v<decltype(call())>) {
      call();
      stop();
    } else {
      auto made = call();
      stop();
      return made;
    }
  }
  double seconds() const { return std::chrono::duration<double>(total_).count(); }

 private:
  using clock = std::chrono::steady_clock;
  clock::time_point began_{};
  clock::duration total_{};
};

// Registers a case that sets the time of its iterations, shown in milliseconds. `iterations`: 0: as
// many as Google Benchmark finds necessary; --smoke makes one.
template <class Work>
void add_case(const std::string &name, int iterations, Work work) {
  auto *const made = benchmark::RegisterBenchmark(name.c_str(), std::move(work));
  made->UseManualTime()->Unit(benchmark::kMillisecond);
  if (iterations != 0) made->Iterations(smoke() ? 1 : iterations);
}

}  // namespace stillmap::bench
