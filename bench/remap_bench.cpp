// The cost of a request that needs pages, by their number: moved from free memory of the same
// stream or of another stream, or created by the driver. The times are hostcuda's; the number of
// driver calls is the same on a GPU.
#include <string>

#include "bench/support/session.h"
#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::bench {
namespace {

enum class source { scattered, another_stream, driver };

struct heap_of_case {
  std::vector<stream> streams;
  std::unique_ptr<caching_allocator> heap;
};

// Leaves `pages` pages free where the request cannot use them as they lie, and no other pages.
status prepare(const session &s, heap_of_case &h, source from, std::size_t pages) {
  const std::size_t page = s.dev().capabilities().page_bytes;
  for (int i = 0; i < 2; ++i) {
    STILLMAP_ASSIGN_OR_RETURN(stream made, stream::create(s.dev()));
    h.streams.push_back(std::move(made));
  }
  STILLMAP_ASSIGN_OR_RETURN(h.heap, caching_allocator::create(s.dev()));
  // Reserves the addresses of the stream, which is not measured.
  STILLMAP_ASSIGN_OR_RETURN(void *const first, h.heap->allocate(page, h.streams[0]));
  STILLMAP_RETURN_IF_ERROR(h.heap->free(first));
  STILLMAP_RETURN_IF_ERROR(h.heap->empty_cache());
  STILLMAP_RETURN_IF_ERROR(h.heap->empty_cache());
  if (from == source::driver) return {};
  std::vector<void *> freed;
  if (from == source::scattered) {
    for (std::size_t i = 0; i < 2 * pages; ++i) {
      STILLMAP_ASSIGN_OR_RETURN(void *const block, h.heap->allocate(page, h.streams[0]));
      if (i % 2 == 0) freed.push_back(block);
    }
  } else {
    STILLMAP_ASSIGN_OR_RETURN(void *const block, h.heap->allocate(pages * page, h.streams[1]));
    freed.push_back(block);
  }
  for (void *block : freed) STILLMAP_RETURN_IF_ERROR(h.heap->free(block));
  h.heap->set_limit(h.heap->stats().total.committed);
  return {};
}

void get_pages(benchmark::State &state, source from, std::size_t pages) {
  const std::size_t room = (2 * pages + 64) * std::size_t{2} * (1 << 20);
  session s(state, memory_kind::unbacked, room);
  if (!s) return;
  if (!s.dev().capabilities().vmm) {
    state.SkipWithError("the device cannot map pages");
    return;
  }
  for (auto _ : state) {
    heap_of_case h;
    if (!s.check(prepare(s, h, from, pages))) return;
    const tally before = s.now();
    stopwatch watch;
    const auto block = watch.time(
        [&] { return h.heap->allocate(pages * s.dev().capabilities().page_bytes, h.streams[0]); });
    if (!s.check(block)) return;
    s.add(before);
    state.SetIterationTime(watch.seconds());
    const caching_allocator_stats stats = h.heap->stats();
    if (from != source::driver && stats.pages_moved != pages) {
      state.SkipWithError("the pages did not move");
      return;
    }
  }
  s.report(static_cast<double>(pages));
  state.counters["calls_a_page"] = state.counters["calls"];
  for (const char *name : {"calls", "copied_MiB", "peak_MiB"}) state.counters.erase(name);
}

[[maybe_unused]] const bool added = [] {
  const struct {
    source from;
    const char *name;
  } sources[] = {{source::scattered, "moved, same stream"},
                 {source::another_stream, "moved, another stream"},
                 {source::driver, "new from the driver"}};
  for (std::size_t pages = 1; pages <= 4096; pages *= 4) {
    for (const auto &each : sources) {
      if (pages == 1 && each.from == source::scattered) continue;  // one page is where it is
      const std::string name = std::to_string(pages) + (pages == 1 ? " page|" : " pages|");
      benchmark::RegisterBenchmark(
          (name + each.name).c_str(),
          [=](benchmark::State &state) { get_pages(state, each.from, pages); })
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond)
          ->Iterations(smoke()       ? 1
                       : pages > 256 ? 5
                                     : 50);
    }
  }
  return true;
}();

}  // namespace
}  // namespace stillmap::bench
