// Taking memory away and giving it back, against a plain copy of the same bytes in host memory by
// as many threads. A row's bytes_per_second is contents over time.
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/support/session.h"
#include "stillmap/checkpoint/suspender.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap::bench {
namespace {

using checkpoint::keep_in;
using checkpoint::suspend_options;
using checkpoint::suspender;

constexpr std::size_t streams = 2;

std::size_t total_bytes() {
  return smoke() ? 64_MiB : 2_GiB;
}

// What a program without any of this would do: copy it there and back.
void plain_copy(benchmark::State &state) {
  const std::size_t bytes = total_bytes(), part = bytes / streams;
  const std::unique_ptr<unsigned char[]> from(new unsigned char[bytes]),
      to(new unsigned char[bytes]);
  std::memset(from.get(), 1, bytes);
  std::memset(to.get(), 2, bytes);  // there already, as pinned memory is
  for (auto _ : state) {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < streams; ++i) {
      threads.emplace_back(
          [&, i] { std::memcpy(to.get() + i * part, from.get() + i * part, part); });
    }
    for (std::thread &t : threads) t.join();
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
}

enum class half { suspend, resume };

void suspending(benchmark::State &state, half timed, keep_in where) {
  const std::size_t bytes = total_bytes();
  session s(state, memory_kind::backed, where == keep_in::pinned_memory ? 2 * bytes : bytes);
  if (!s) return;
  buffer_options shape;
  shape.reserve = bytes;
  shape.tag = "task";
  auto buffer = growable_buffer::create(s.dev(), shape);
  if (!s.check(buffer) || !s.check(buffer->resize(bytes))) return;
  {
    const context_guard guard(s.drv(), s.dev().context());
    if (!s.check(s.drv().set_bytes_async(buffer->address(), 0x5a, bytes, nullptr))) return;
    if (!s.check(s.drv().synchronize_context())) return;
  }
  checkpoint::suspender_options options;
  options.keep_pinned = 2 * bytes;
  options.streams = streams;
  auto by = suspender::create(s.dev(), options);
  if (!s.check(by)) return;
  suspend_options how;
  how.contents = where;
  // Once before, so that pinned memory is there.
  if (!s.check((*by)->suspend("task", how)) || !s.check((*by)->resume("task"))) return;
  for (auto _ : state) {
    stopwatch watch;
    const tally before = s.now();
    if (timed == half::suspend) watch.start();
    if (!s.check((*by)->suspend("task", how))) return;
    if (timed == half::suspend) watch.stop();
    if (timed == half::resume) watch.start();
    if (!s.check((*by)->resume("task"))) return;
    if (timed == half::resume) watch.stop();
    s.add(before);
    state.SetIterationTime(watch.seconds());
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
  s.report();
}

[[maybe_unused]] const bool registered = [] {
  benchmark::RegisterBenchmark("memcpy", plain_copy)->UseRealTime()->Unit(benchmark::kMillisecond);
  for (const auto &[where, name] : {std::pair{keep_in::pinned_memory, "pinned"},
                                    {keep_in::file, "file"},
                                    {keep_in::nothing, "dropped"}}) {
    for (const half h : {half::suspend, half::resume}) {
      const std::string title = std::string(h == half::suspend ? "suspend/" : "resume/") + name;
      benchmark::RegisterBenchmark(
          title.c_str(), [h, w = where](benchmark::State &state) { suspending(state, h, w); })
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace stillmap::bench
