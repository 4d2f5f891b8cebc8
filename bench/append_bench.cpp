// Appending bytes to a device_vector, compared with the least that moving them costs: one memcpy of
// the same bytes into memory that was touched before. On hostcuda the memcpy is the whole transfer;
// on a GPU it measures the host only.
#include <cstring>
#include <memory>
#include <vector>

#include "bench/support/session.h"
#include "stillmap/vmm/device_vector.h"

namespace stillmap::bench {
namespace {

constexpr std::size_t chunk = 32_MiB;
using byte_vector = device_vector<unsigned char>;

std::size_t total() {
  return smoke() ? 1_GiB : 4_GiB;
}

struct cost {
  stopwatch watch;
  double first_touch = 0;
};

// Appends one chunk. False where that failed, which ended the case.
bool append(session &s, byte_vector &to, const std::vector<unsigned char> &from, cost &c) {
  const tally before = s.now();
  const status done = c.watch.time([&] { return to.append(from); });
  c.first_touch += static_cast<double>(s.now().first_touch_ns - before.first_touch_ns) * 1e-9;
  return s.check(done);
}

result<byte_vector> make_vector(const session &s, const stream &on,
                                std::vector<std::shared_ptr<page_pool>> pools, bool copying) {
  vector_options options;
  options.buffer.reserve_bytes = total();
  options.buffer.pools = std::move(pools);
  options.buffer.force_copying = copying;
  return byte_vector::create(s.dev(), options, on);
}

// The plain memcpy and the append take turns, chunk by chunk, so that whatever else the machine
// does meets both alike. The case's time is that of the append.
enum class kind { warm, cold, copying };

void append_beside_memcpy(benchmark::State &state, kind what) {
  const std::size_t peak = what == kind::copying ? total() / 2 * 3 : total();
  session s(state, memory_kind::backed, peak + (the_driver()->is_simulator() ? total() : 0));
  if (!s) return;
  std::vector<unsigned char> from(chunk);
  for (std::size_t i = 0; i < chunk; ++i) from[i] = static_cast<unsigned char>(i * 31 >> 4);
  const std::unique_ptr<unsigned char[]> touched(new unsigned char[total()]);
  std::memset(touched.get(), 1, total());
  auto on = stream::create(s.dev());
  if (!s.check(on)) return;

  page_pool_options options;
  options.keep_free = what == kind::warm ? total() : 0;
  const auto pool = page_pool::create(s.dev(), options);
  if (!s.check(pool)) return;
  if (what == kind::warm) {  // pages that exist, and whose bytes were there before
    auto earlier = make_vector(s, *on, {*pool}, false);
    cost untimed;
    for (std::size_t n = 0; n < total(); n += chunk) {
      if (!s.check(earlier) || !append(s, *earlier, from, untimed)) return;
    }
  }

  cost plain, appended;
  std::uint64_t relocations = 0;
  for (auto _ : state) {
    auto to = make_vector(s, *on, {*pool}, what == kind::copying);
    if (!s.check(to)) return;
    const double before = appended.watch.seconds();
    for (std::size_t n = 0; n < total(); n += chunk) {
      plain.watch.start();
      std::memcpy(touched.get() + n, from.data(), chunk);
      benchmark::ClobberMemory();
      plain.watch.stop();
      const tally counted = s.now();
      if (!append(s, *to, from, appended)) return;
      s.add(counted);
    }
    state.SetIterationTime(appended.watch.seconds() - before);
    relocations += to->buffer().stats().relocations;
  }
  s.report();
  const double n = static_cast<double>(state.iterations());
  state.counters["memcpy_ms"] = plain.watch.seconds() * 1e3 / n;
  state.counters["x_memcpy"] =
      (appended.watch.seconds() - appended.first_touch) / plain.watch.seconds();
  state.counters["relocations"] = static_cast<double>(relocations) / n;
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(total()));
}

void shape(benchmark::internal::Benchmark *b) {
  b->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(smoke() ? 1 : 3);
}

BENCHMARK_CAPTURE(append_beside_memcpy, warm_pool, kind::warm)->Apply(shape);
BENCHMARK_CAPTURE(append_beside_memcpy, cold_pool, kind::cold)->Apply(shape);
BENCHMARK_CAPTURE(append_beside_memcpy, copying, kind::copying)->Apply(shape);

}  // namespace
}  // namespace stillmap::bench
