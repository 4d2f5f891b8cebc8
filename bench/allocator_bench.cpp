// The caching allocator's hot path beside one uncontended std::mutex lock + unlock and the host's
// malloc, by size and by number of threads. No driver call is made inside any timed loop.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "stillmap/allocators/caching_allocator.h"

namespace {

using stillmap::caching_allocator;
using stillmap::device;
using stillmap::stream;

struct machine {
  machine() : dev(*device::open()), heap(std::move(*caching_allocator::create(dev))) {
    for (int i = 0; i < 8; ++i) streams.push_back(std::move(*stream::create(dev)));
  }
  device dev;
  std::vector<stream> streams;
  std::unique_ptr<caching_allocator> heap;
};

machine &the_machine() {
  static machine m;
  return m;
}

void mutex_lock_unlock(benchmark::State &state) {
  static std::mutex mutex;
  for (auto _ : state) {
    mutex.lock();
    benchmark::ClobberMemory();
    mutex.unlock();
  }
}
BENCHMARK(mutex_lock_unlock);

// Each thread on its own stream; a block of the size is free already.
void allocate_free(benchmark::State &state) {
  machine &m = the_machine();
  const auto &s = m.streams[static_cast<std::size_t>(state.thread_index())];
  const auto bytes = static_cast<std::size_t>(state.range(0));
  if (const auto first = m.heap->allocate(bytes, s); first) {
    [[maybe_unused]] const auto freed = m.heap->free(*first, s);
  }
  const std::uint64_t calls = m.dev.drv().counts().total();
  for (auto _ : state) {
    const auto block = m.heap->allocate(bytes, s);
    benchmark::DoNotOptimize(*block);
    if (!m.heap->free(*block, s)) state.SkipWithError("the block could not be freed");
  }
  state.SetItemsProcessed(state.iterations());
  if (state.threads() == 1 && m.dev.drv().counts().total() != calls) {
    state.SkipWithError("a driver call in the loop");
  }
}
BENCHMARK(allocate_free)->RangeMultiplier(8)->Range(512, std::int64_t{1} << 30);
BENCHMARK(allocate_free)->Arg(4096)->Arg(1 << 20)->ThreadRange(1, 8)->UseRealTime();

// The same without naming the stream when freeing.
void allocate_free_by_pointer(benchmark::State &state) {
  machine &m = the_machine();
  const auto &s = m.streams[0];
  for (auto _ : state) {
    const auto block = m.heap->allocate(static_cast<std::size_t>(state.range(0)), s);
    benchmark::DoNotOptimize(*block);
    if (!m.heap->free(*block)) state.SkipWithError("the block could not be freed");
  }
}
BENCHMARK(allocate_free_by_pointer)->Arg(4096)->Arg(1 << 20);

// A hundred blocks at once, freed in the order they came.
void hundred_blocks(benchmark::State &state) {
  machine &m = the_machine();
  const auto &s = m.streams[0];
  std::vector<void *> blocks(100);
  for (auto _ : state) {
    for (void *&b : blocks) b = *m.heap->allocate(static_cast<std::size_t>(state.range(0)), s);
    for (void *b : blocks) {
      if (!m.heap->free(b, s)) state.SkipWithError("a block could not be freed");
    }
  }
  state.SetItemsProcessed(state.iterations() * 100);
}
BENCHMARK(hundred_blocks)->Arg(512)->Arg(8192)->Arg(65536)->Arg(3 << 20);

void host_malloc_free(benchmark::State &state) {
  for (auto _ : state) {
    void *const block = std::malloc(static_cast<std::size_t>(state.range(0)));
    benchmark::DoNotOptimize(block);
    std::free(block);
  }
}
BENCHMARK(host_malloc_free)->RangeMultiplier(8)->Range(512, std::int64_t{1} << 30);

}  // namespace
