// Digests of device memory computed on the device, compared with copies within device memory. A
// copy reads and writes each byte, a digest reads it.
#include <vector>

#include "bench/support/session.h"
#include "stillmap/checkpoint/snapshot/chunk_digests.h"
#include "stillmap/vmm/context.h"

namespace stillmap::bench {
namespace {

std::size_t total_bytes() {
  return smoke() ? 64_MiB : amount(2_GiB, 16_GiB);
}

// In turn, so that what else the machine does meets both.
void digests(benchmark::State &state) {
  const std::size_t bytes = total_bytes(), half = bytes / 2;
  const auto chunk = static_cast<std::size_t>(state.range(0)) << 10;
  session s(state, memory_kind::backed, bytes);
  if (!s) return;
  const auto memory = make_buffer(s.dev(), bytes);
  if (!s.check(memory) || !s.check(write_bytes(s.dev(), memory->address(), bytes))) return;
  auto digester = snapshot::chunk_digester::create(s.dev(), {});
  if (!s.check(digester)) return;
  std::vector<virtual_range> chunks;
  for (std::size_t at = 0; at < bytes; at += chunk)
    chunks.push_back({memory->address() + at, chunk});
  const context_guard guard(s.driver(), s.dev().context());
  auto on = stream::create(s.dev());
  if (!s.check(on)) return;
  stopwatch copying;
  double digesting = 0;
  for (auto _ : state) {
    const status copied = copying.time([&] {
      const status queued = s.driver().copy_on_device_async(
          memory->address(), memory->address() + half, half, on->get());
      return queued ? s.driver().synchronize_stream(on->get()) : queued;
    });
    if (!s.check(copied)) return;
    stopwatch now;
    const auto made = now.time([&] { return digester->digests_of(chunks); });
    if (!s.check(made)) return;
    digesting += now.seconds();
    state.SetIterationTime(now.seconds());
  }
  // Either took the same number of bytes from memory or to it.
  state.counters["copy_ms"] = copying.seconds() * 1e3 / static_cast<double>(state.iterations());
  state.counters["of_copy_bandwidth"] = copying.seconds() / digesting;
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
}

BENCHMARK(digests)
    ->ArgName("chunk_KiB")
    ->Arg(512)
    ->Arg(2048)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stillmap::bench
