// Suspending and resuming a task, compared with a plain copy of the same bytes in host memory by as
// many threads, and with the device's own copies between its memory and pinned memory. A row's
// bytes_per_second is contents over time.
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/support/median.h"
#include "bench/support/session.h"
#include "stillmap/checkpoint/common/batch_copier.h"
#include "stillmap/checkpoint/common/host_memory.h"
#include "stillmap/checkpoint/suspend/suspender.h"

namespace stillmap::bench {
namespace {

using checkpoint::backing_store;
using checkpoint::suspend_options;
using checkpoint::suspender;

constexpr std::size_t streams = 2;

std::size_t total_bytes() {
  return smoke() ? 64_MiB : amount(2_GiB, 16_GiB);
}

// What a program without Stillmap does: copies between memory that exists already, as pinned memory
// does.
class plain_copy {
 public:
  explicit plain_copy(std::size_t bytes)
      : part_(bytes / streams), from_(new unsigned char[bytes]), to_(new unsigned char[bytes]) {
    std::memset(from_.get(), 1, bytes);
    std::memset(to_.get(), 2, bytes);
  }
  void run() const {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < streams; ++i) {
      threads.emplace_back(
          [&, i] { std::memcpy(to_.get() + i * part_, from_.get() + i * part_, part_); });
    }
    for (std::thread &t : threads) t.join();
    benchmark::ClobberMemory();
  }

 private:
  std::size_t part_;
  std::unique_ptr<unsigned char[]> from_, to_;
};

void plain(benchmark::State &state) {
  const plain_copy copy(total_bytes());
  for (auto _ : state) copy.run();
  state.SetBytesProcessed(static_cast<std::int64_t>(total_bytes()) * state.iterations());
}

enum class half { suspend, resume, resume_at_once };

// The task sleeps between suspend and resume, while hostcuda zeroes what was released, more slowly
// than a GPU. `resume_at_once` measures the cost without the sleep.
void pause() {
  std::this_thread::sleep_for(std::chrono::milliseconds(smoke() ? 1 : 250));
}

// A buffer that was written, and its suspender. Suspended and resumed once, so that pinned memory
// exists.
class task {
 public:
  task(session &s, std::size_t bytes, backing_store where) : s_(s) {
    how_.store = where;
    auto made = make_buffer(s.dev(), bytes, "task");
    if (!s.check(made) || !s.check(write_bytes(s.dev(), made->address(), bytes))) return;
    buffer_ = std::move(*made);
    checkpoint::suspender_options options;
    options.keep_pinned = 2 * bytes;
    options.streams = streams;
    auto by = suspender::create(s.dev(), options);
    if (!s.check(by)) return;
    by_ = std::move(*by);
    good_ = true;
    suspend();
    resume();
  }
  explicit operator bool() const { return good_; }
  device_address address() const { return buffer_->address(); }
  void suspend() { good_ = good_ && s_.check(by_->suspend("task", how_)); }
  void resume() { good_ = good_ && s_.check(by_->resume("task")); }

 private:
  session &s_;
  suspend_options how_;
  std::optional<growable_buffer> buffer_;
  std::unique_ptr<suspender> by_;
  bool good_ = false;
};

void suspending(benchmark::State &state, half timed, backing_store where) {
  const std::size_t bytes = total_bytes();
  session s(state, memory_kind::backed, where == backing_store::pinned_host ? 2 * bytes : bytes);
  if (!s) return;
  task t(s, bytes, where);
  if (!t) return;
  for (auto _ : state) {
    stopwatch watch;
    const tally before = s.now();
    if (timed == half::suspend) watch.start();
    t.suspend();
    if (timed == half::suspend) watch.stop();
    if (timed != half::resume_at_once) pause();
    if (timed != half::suspend) watch.start();
    t.resume();
    if (timed != half::suspend) watch.stop();
    if (!t) return;
    s.add(before);
    state.SetIterationTime(watch.seconds());
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
  s.report();
}

// The device's copies alone: a task's memory to pinned memory and back.
class engine_copy {
 public:
  engine_copy(session &s, virtual_range memory) : s_(s), memory_(memory) {
    auto room = checkpoint::host_memory::create(s.dev(), memory.bytes);
    auto by = checkpoint::batch_copier::create(s.dev(), streams);
    if (!s.check(room) || !s.check(by)) return;
    room_ = std::move(*room);
    by_.emplace(std::move(*by));
  }
  explicit operator bool() const { return by_.has_value(); }
  bool run(checkpoint::direction way) {
    const checkpoint::piece all{memory_, 0};
    return s_.check(by_->copy(way, {&all, 1}, room_.data(), 16_MiB));
  }

 private:
  session &s_;
  virtual_range memory_;
  checkpoint::host_memory room_;
  std::optional<checkpoint::batch_copier> by_;
};

// All in turn, so that other load on the machine affects all alike: medians, and the speed of each
// half relative to memcpy and to the device's own copies.
void side_by_side(benchmark::State &state) {
  const std::size_t bytes = total_bytes();
  session s(state, memory_kind::backed, 5 * bytes);
  if (!s) return;
  const plain_copy copy(bytes);
  task t(s, bytes, backing_store::pinned_host);
  if (!t) return;
  engine_copy engine(s, {t.address(), bytes});
  if (!engine) return;
  std::vector<double> copies, suspends, resumes, to_host, to_device;
  const auto timed = [](std::vector<double> &into, auto what) {
    stopwatch watch;
    watch.time(what);
    into.push_back(watch.seconds());
  };
  for (auto _ : state) {
    bool good = true;
    timed(copies, [&] { copy.run(); });
    timed(to_host, [&] { good = engine.run(checkpoint::direction::to_host); });
    timed(suspends, [&] { t.suspend(); });
    pause();
    timed(copies, [&] { copy.run(); });
    timed(resumes, [&] { t.resume(); });
    timed(to_device, [&] { good = engine.run(checkpoint::direction::to_device) && good; });
    if (!t || !good) return;
  }
  const double plain_copies = median(copies);
  state.counters["memcpy_ms"] = plain_copies * 1e3;
  state.counters["suspend_ms"] = median(suspends) * 1e3;
  state.counters["resume_ms"] = median(resumes) * 1e3;
  state.counters["suspend_of_memcpy"] = plain_copies / median(suspends);
  state.counters["resume_of_memcpy"] = plain_copies / median(resumes);
  state.counters["suspend_of_engine"] = median(to_host) / median(suspends);
  state.counters["resume_of_engine"] = median(to_device) / median(resumes);
}

[[maybe_unused]] const bool registered = [] {
  benchmark::RegisterBenchmark("memcpy", plain)->UseRealTime()->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("side_by_side/pinned", side_by_side)
      ->Iterations(smoke() ? 1 : 9)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  for (const auto &[where, name] : {std::pair{backing_store::pinned_host, "pinned"},
                                    {backing_store::file, "file"},
                                    {backing_store::discard, "dropped"}}) {
    for (const auto &[h, verb] : {std::pair{half::suspend, "suspend/"},
                                  {half::resume, "resume/"},
                                  {half::resume_at_once, "resume_at_once/"}}) {
      add_case(std::string(verb) + name, 0,
               [h = h, w = where](benchmark::State &state) { suspending(state, h, w); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace stillmap::bench
