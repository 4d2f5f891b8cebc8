// device_vector beside std::vector and beside a device vector that grows by copying; and the calls
// that should cost next to nothing: push_back, and resize within capacity.
#include <vector>

#include "bench/support/session.h"
#include "stillmap/vmm/device_vector.h"

namespace stillmap::bench {
namespace {

using element = std::uint32_t;
constexpr std::size_t batch = 4096;  // elements an append adds

std::size_t memory_for(std::size_t elements) {
  return elements * sizeof(element) * 3 + 64_MiB;
}

result<device_vector<element>> make(const session &s, const stream &on, bool copying) {
  vector_options options;
  options.buffer.reserve_bytes = 1_GiB;
  options.buffer.force_copying = copying;
  return device_vector<element>::create(s.dev(), options, on);
}

// Everything arrives: the wait for the last byte is timed.
status fill(device_vector<element> &v, std::size_t count, bool by_append) {
  if (by_append) {
    const std::vector<element> values(batch, 7);
    for (std::size_t i = 0; i < count; i += batch) {
      if (status s = v.append(values); !s) return s;
    }
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      if (status s = v.push_back(static_cast<element>(i)); !s) return s;
    }
  }
  return v.synchronize();
}

void device_fill(benchmark::State &state, bool copying, bool by_append) {
  const auto count = static_cast<std::size_t>(state.range(0));
  session s(state, memory_kind::backed, memory_for(count));
  if (!s) return;
  auto on = stream::create(s.dev());
  if (!s.check(on)) return;
  for (auto _ : state) {
    auto v = make(s, *on, copying);
    if (!s.check(v)) return;
    const tally before = s.now();
    stopwatch watch;
    const status done = watch.time([&] { return fill(*v, count, by_append); });
    if (!s.check(done)) return;
    s.add(before);
    state.SetIterationTime(watch.seconds());
  }
  s.report();
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void host_fill(benchmark::State &state, bool by_append) {
  const auto count = static_cast<std::size_t>(state.range(0));
  const std::vector<element> values(batch, 7);
  for (auto _ : state) {
    std::vector<element> v;
    stopwatch watch;
    watch.start();
    if (by_append) {
      for (std::size_t i = 0; i < count; i += batch) {
        v.insert(v.end(), values.begin(), values.end());
      }
    } else {
      for (std::size_t i = 0; i < count; ++i) v.push_back(static_cast<element>(i));
    }
    benchmark::DoNotOptimize(v.data());
    benchmark::ClobberMemory();
    watch.stop();
    state.SetIterationTime(watch.seconds());
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

// ---- what must cost next to nothing ------------------------------------------------------------

void push_back_alone(benchmark::State &state) {
  session s(state, memory_kind::unbacked, 1_GiB);
  if (!s) return;
  auto on = stream::create(s.dev());
  if (!s.check(on)) return;
  auto v = make(s, *on, false);
  if (!s.check(v) || !s.check(v->reserve(128_MiB / sizeof(element)))) return;
  const std::size_t full = v->capacity();
  element next = 0;
  for (auto _ : state) {
    if (v->size() == full) {
      state.PauseTiming();
      if (!s.check(v->clear())) return;
      state.ResumeTiming();
    }
    if (const status done = v->push_back(next++); !done) return s.fail(done.error());
  }
  state.SetItemsProcessed(state.iterations());
}

void resize_within_capacity(benchmark::State &state) {
  session s(state, memory_kind::unbacked, 1_GiB);
  if (!s) return;
  buffer_options options;
  options.reserve_bytes = 1_GiB;
  auto buffer = growable_buffer::create(s.dev(), options);
  if (!s.check(buffer) || !s.check(buffer->reserve(1_GiB))) return;
  const tally before = s.now();
  std::size_t size = 0;
  for (auto _ : state) {
    size = size == 0 ? 1_GiB : 0;
    if (const status done = buffer->resize(size); !done) return s.fail(done.error());
  }
  s.add(before);
  s.report();
}

void counts(benchmark::internal::Benchmark *b) {
  b->Arg(4096)->Arg(1 << 20);
  if (!smoke()) b->Arg(1 << 26);
  b->ArgName("elements")->UseManualTime()->Unit(benchmark::kMicrosecond);
  b->MinTime(smoke() ? 0.001 : 0.2);
}

BENCHMARK(push_back_alone);
BENCHMARK(resize_within_capacity);
BENCHMARK_CAPTURE(device_fill, push_back, false, false)->Apply(counts);
BENCHMARK_CAPTURE(device_fill, push_back_copying, true, false)->Apply(counts);
BENCHMARK_CAPTURE(host_fill, push_back, false)->Apply(counts);
BENCHMARK_CAPTURE(device_fill, append, false, true)->Apply(counts);
BENCHMARK_CAPTURE(device_fill, append_copying, true, true)->Apply(counts);
BENCHMARK_CAPTURE(host_fill, append, true)->Apply(counts);

}  // namespace
}  // namespace stillmap::bench
