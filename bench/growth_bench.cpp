// The cost of growing: in place by mapping pages, and by two ways of copying. Only the growing
// calls are timed, not the data written between them.
#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "bench/support/kernels.h"
#include "bench/support/session.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::bench {
namespace {

enum class pool_state { cold, warm };

std::shared_ptr<page_pool> make_pool(session &s, pool_state state, std::size_t bytes) {
  page_pool_options options;
  options.keep_free = state == pool_state::warm ? bytes : 0;
  auto made = page_pool::create(s.dev(), options);
  if (!s.check(made)) return nullptr;
  if (state == pool_state::warm && !s.check((*made)->prepare(bytes))) return nullptr;
  return *made;
}

// Writes data for the copying to move, if the memory has bytes.
bool write_step(session &s, memory_kind kind, device_address at, std::size_t bytes) {
  if (kind == memory_kind::unbacked && s.driver().is_simulator()) return true;
  return s.check(write_bytes(s.dev(), at, bytes));
}

// Arguments of all growth cases: GiB to reach, MiB a step.
struct shape {
  explicit shape(const benchmark::State &state)
      : total(static_cast<std::size_t>(state.range(0)) << 30),
        step(static_cast<std::size_t>(state.range(1)) << 20) {}
  std::size_t total, step;
};

void set_per_growth(benchmark::State &state, double seconds, const shape &to) {
  const auto growths = static_cast<double>(to.total / to.step * state.iterations());
  state.counters["us/growth"] = seconds * 1e6 / growths;
}

void grow_buffer(benchmark::State &state, memory_kind kind, pool_state pool, bool copying) {
  const shape to(state);
  session s(state, kind, copying ? to.total + to.total / 2 : to.total);
  if (!s) return;
  std::shared_ptr<page_pool> pages;
  if (!copying && (pages = make_pool(s, pool, to.total)) == nullptr) return;
  double seconds = 0;
  for (auto _ : state) {
    buffer_options options;
    options.reserve_bytes = to.total;
    options.force_copying = copying;
    if (pages) options.pools = {pages};
    auto buffer = growable_buffer::create(s.dev(), options);
    if (!s.check(buffer)) return;
    stopwatch watch;
    for (std::size_t size = 0; size < to.total; size += to.step) {
      const tally before = s.now();
      const status grown = watch.time([&] { return buffer->resize(size + to.step); });
      if (!s.check(grown)) return;
      s.add(before);
      if (!write_step(s, kind, buffer->address() + size, to.step)) return;
    }
    state.SetIterationTime(watch.seconds());
    seconds += watch.seconds();
  }
  set_per_growth(state, seconds, to);
  s.report();
}

// Doubling by copying with stream-ordered allocation: no call waits; the wait at the end counts.
void grow_async(benchmark::State &state, memory_kind kind) {
  const shape to(state);
  session s(state, kind, to.total + to.total / 2);
  if (!s) return;
  if (!s.dev().capabilities().memory_pools) return state.SkipWithError("no cuMemAllocAsync");
  const context_guard guard(s.driver(), s.dev().context());
  auto stream = stream::create(s.dev());
  if (!s.check(stream)) return;
  const driver &drv = s.driver();
  const auto grow = [&](device_address &at, std::size_t size, std::size_t capacity) -> status {
    STILLMAP_ASSIGN_OR_RETURN(const device_address fresh,
                              drv.allocate_async(capacity, stream->get()));
    if (const device_address old = std::exchange(at, fresh)) {
      STILLMAP_RETURN_IF_ERROR(drv.copy_on_device_async(fresh, old, size, stream->get()));
      STILLMAP_RETURN_IF_ERROR(drv.free_async(old, stream->get()));
    }
    return drv.synchronize_stream(stream->get());
  };
  double seconds = 0;
  for (auto _ : state) {
    device_address at;
    std::size_t capacity = 0;
    stopwatch watch;
    for (std::size_t size = 0; size < to.total; size += to.step) {
      if (size + to.step > capacity) {
        const tally before = s.now();
        capacity = std::max(capacity * 2, size + to.step);
        const status grown = watch.time([&] { return grow(at, size, capacity); });
        if (!s.check(grown)) return;
        s.add(before);
      }
      if (!write_step(s, kind, at + size, to.step)) return;
    }
    state.SetIterationTime(watch.seconds());
    seconds += watch.seconds();
    if (!s.check(drv.free_async(at, stream->get()))) return;
    if (!s.check(drv.synchronize_stream(stream->get()))) return;
  }
  set_per_growth(state, seconds, to);
  s.report();
}

// The program computes between growths: the time that the resizing thread waits, with pages mapped
// ahead and without.
void grow_while_computing(benchmark::State &state, pool_state pool) {
  const std::size_t total = smoke() ? 64_MiB : 1_GiB, step = 2_MiB;
  session s(state, memory_kind::unbacked, total);
  if (!s) return;
  const auto pages = make_pool(s, pool, total + 64_MiB);
  if (pages == nullptr) return;
  std::vector<double> waits;
  for (auto _ : state) {
    buffer_options options;
    options.reserve_bytes = 2 * total;
    options.pools = {pages};
    options.map_ahead_bytes = static_cast<std::size_t>(state.range(0)) << 20;
    auto buffer = growable_buffer::create(s.dev(), options);
    if (!s.check(buffer) || !s.check(buffer->reserve(options.map_ahead_bytes))) return;
    double sum = 0;
    for (std::size_t size = step; size <= total; size += step) {
      stopwatch watch;
      const status grown = watch.time([&] { return buffer->resize(size); });
      if (!s.check(grown)) return;
      waits.push_back(watch.seconds());
      sum += watch.seconds();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    state.SetIterationTime(sum);
    state.counters["ahead_growths"] = static_cast<double>(buffer->stats().ahead_growths);
    state.counters["own_growths"] = static_cast<double>(buffer->stats().growths);
  }
  std::sort(waits.begin(), waits.end());
  if (waits.empty()) return;
  state.counters["median_us"] = waits[waits.size() / 2] * 1e6;
  state.counters["p99_us"] = waits[waits.size() * 99 / 100] * 1e6;
}

// One page more, for buffers of very different sizes: the cost must not depend on the size, nor on
// a kernel that writes to the buffer. For the kernel hostcuda needs bytes, which cost more to map.
void grow_by_one_page(benchmark::State &state, bool under_a_kernel) {
  const std::size_t size = static_cast<std::size_t>(state.range(0)) << 20, step = 2_MiB;
  constexpr std::size_t batch = 64;
  session s(state, under_a_kernel ? memory_kind::lazy : memory_kind::unbacked, size + batch * step);
  if (!s) return;
  const auto pages = make_pool(s, pool_state::warm, size + batch * step);
  if (pages == nullptr) return;
  buffer_options options;
  options.reserve_bytes = 128_GiB;
  options.pools = {pages};
  auto buffer = growable_buffer::create(s.dev(), options);
  if (!s.check(buffer) || !s.check(buffer->resize(size))) return;
  const context_guard guard(s.driver(), s.dev().context());
  auto with = kernels::load(s.driver());
  const auto stream = stillmap::stream::create(s.dev());
  if (!s.check(with) || !s.check(stream)) return;
  std::vector<double> costs;
  for (auto _ : state) {
    double sum = 0;
    if (under_a_kernel && !s.check(with->start_busy(buffer->address(), 10'000, stream->get()))) {
      return;
    }
    const tally before = s.now();
    for (std::size_t i = 1; i <= batch; ++i) {
      stopwatch watch;
      const status grown = watch.time([&] { return buffer->resize(size + i * step); });
      if (!s.check(grown)) return;
      costs.push_back(watch.seconds());
      sum += watch.seconds();
    }
    s.add(before);
    if (under_a_kernel && !s.check(with->end_busy(stream->get()))) return;
    state.SetIterationTime(sum / batch);
    if (!s.check(buffer->resize(size)) || !s.check(buffer->shrink_to_fit(fence()))) return;
  }
  s.report(batch);
  std::sort(costs.begin(), costs.end());
  if (!costs.empty()) state.counters["median_us"] = costs[costs.size() / 2] * 1e6;
}

void flat_sizes(benchmark::internal::Benchmark *b, int most) {
  for (const int mib : {16, 256, 1 << 10, 16 << 10, 64 << 10}) {
    if (mib <= most) b->Arg(mib);
  }
  b->ArgName("MiB")->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(smoke() ? 2 : 200);
}

void ahead_sizes(benchmark::internal::Benchmark *b) {
  b->Arg(0)->Arg(16)->ArgName("ahead_MiB")->UseManualTime()->Unit(benchmark::kMicrosecond);
  b->Iterations(smoke() ? 1 : 3);
}

void large(benchmark::internal::Benchmark *b) {
  for (const int gib : {1, 4, 16}) {
    for (const int step : {2, 64}) b->Args({gib, step});
  }
  b->ArgNames({"GiB", "step_MiB"})->UseManualTime()->Unit(benchmark::kMillisecond);
  b->Iterations(smoke() ? 1 : 5);
}

void real(benchmark::internal::Benchmark *b) {
  b->Args({1, 64});
  if (!smoke()) b->Args({1, 2})->Args({4, 64});
  // A GPU has the memory for it, and for the copies.
  if (on_gpu() && !smoke()) b->Args({32, 1024});
  b->ArgNames({"GiB", "step_MiB"})->UseManualTime()->Unit(benchmark::kMillisecond);
  b->Iterations(smoke() ? 1 : 2);
}

constexpr auto books = memory_kind::unbacked;
constexpr auto bytes = memory_kind::backed;
constexpr auto warm = pool_state::warm;
constexpr auto cold = pool_state::cold;

BENCHMARK_CAPTURE(grow_by_one_page, idle, false)->Apply([](auto *b) { flat_sizes(b, 64 << 10); });
// Bytes that kernels can access are mappings of the host, whose number is limited.
BENCHMARK_CAPTURE(grow_by_one_page, under_a_kernel, true)->Apply([](auto *b) {
  flat_sizes(b, on_gpu() ? 64 << 10 : 16 << 10);
});
BENCHMARK_CAPTURE(grow_while_computing, cold, cold)->Apply(ahead_sizes);
BENCHMARK_CAPTURE(grow_while_computing, warm, warm)->Apply(ahead_sizes);
BENCHMARK_CAPTURE(grow_buffer, unbacked_in_place_warm, books, warm, false)->Apply(large);
BENCHMARK_CAPTURE(grow_buffer, unbacked_in_place_cold, books, cold, false)->Apply(large);
BENCHMARK_CAPTURE(grow_buffer, unbacked_copying, books, cold, true)->Apply(large);
BENCHMARK_CAPTURE(grow_async, unbacked_copying_async, books)->Apply(large);
BENCHMARK_CAPTURE(grow_buffer, backed_in_place_warm, bytes, warm, false)->Apply(real);
BENCHMARK_CAPTURE(grow_buffer, backed_in_place_cold, bytes, cold, false)->Apply(real);
BENCHMARK_CAPTURE(grow_buffer, backed_copying, bytes, cold, true)->Apply(real);
BENCHMARK_CAPTURE(grow_async, backed_copying_async, bytes)->Apply(real);

}  // namespace
}  // namespace stillmap::bench
