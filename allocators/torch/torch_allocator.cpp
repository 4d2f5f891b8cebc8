#include "stillmap/allocators/torch/torch_allocator.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/allocators/torch/internal/last_error.h"
#include "stillmap/allocators/torch/internal/torch_heaps.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::torch_plugin {
namespace {

caching_allocator *known_heap(int device) {
  const torch_heaps *const all = known_heaps();
  return all != nullptr ? all->known(device) : nullptr;
}

result<caching_allocator *> open_heap(int ordinal) {
  return with_host_memory([&] { return all_heaps().open(ordinal); });
}

result<void *> allocate(ssize_t size, int ordinal, stream_handle stream) {
  if (size < 0) {
    const operation_scope scope("stillmap_malloc");
    return make_error(errc::invalid_argument, "the size is negative");
  }
  if (size == 0) return nullptr;
  caching_allocator *heap = known_heap(ordinal);
  if (heap == nullptr) [[unlikely]] {
    const operation_scope scope("stillmap_malloc");
    STILLMAP_ASSIGN_OR_RETURN(heap, open_heap(ordinal));
  }
  torch_pools &pools = known_heaps()->pools;
  if (pools.active()) [[unlikely]] {
    STILLMAP_RETURN_IF_ERROR(pools.route(*heap, stream));
  }
  return heap->allocate(static_cast<std::size_t>(size), stream);
}

[[noreturn]] void raise(const error &e) {
  remember_error(e);
  throw std::runtime_error("Stillmap: " + e.message());
}

// An out-of-memory message begins with PyTorch's own words, which programs look for, where it is the
// device's memory.
[[noreturn]] void raise(const error &e, ssize_t size, int ordinal) {
  remember_error(e);
  const bool of_device = e.is(errc::out_of_memory) && e.code != std::errc::not_enough_memory;
  std::string text = of_device ? "CUDA out of memory. " : "";
  text += "Stillmap could not allocate " + std::to_string(size) + " bytes on device " +
          std::to_string(ordinal) + ": " + e.message();
  if (const caching_allocator *const heap = known_heap(ordinal); heap != nullptr && of_device) {
    const arena_stats total = heap->stats().total;
    constexpr double MiB = 1 << 20;
    char room[160];
    std::snprintf(room, sizeof room, ". In use: %.1f MiB; committed: %.1f MiB",
                  static_cast<double>(total.live) / MiB,
                  static_cast<double>(total.committed) / MiB);
    text += room;
  }
  throw std::runtime_error(text);
}

template <class Use>
void each_heap(Use use) {
  if (const torch_heaps *const all = known_heaps()) all->each(use);
}

bool forked() {
  const torch_heaps *const all = known_heaps();
  return all != nullptr && all->forked();
}

// Calls use(pools, heap) for a device, unless it was never used or the process was forked.
template <class Use>
void with_pools(int device, Use use) {
  caching_allocator *const heap = known_heap(device);
  if (heap == nullptr || forked()) return;
  if (const status s = use(all_heaps().pools, *heap); !s) report_error(s.error());
}

result<std::string> stats_of(const caching_allocator &heap, int device) {
  return with_host_memory("stillmap_stats", [&]() -> result<std::string> {
    const caching_allocator_stats s = heap.stats();
    const arena_stats &t = s.total;
    json_writer json;
    json.begin_record().field("device", device);
    json.field("live_bytes", t.live).field("live_peak_bytes", t.live_peak);
    json.field("requested_bytes", t.requested).field("blocks", t.blocks);
    json.field("pending_free_bytes", t.pending_free).field("committed_bytes", t.committed);
    json.field("committed_peak_bytes", s.committed_peak).field("reserved_bytes", t.reserved);
    json.field("free_whole_page_bytes", t.free_whole_pages).field("page_edge_bytes", t.page_edges);
    json.field("limit_bytes", heap.limit()).field("page_bytes", s.page_bytes);
    json.field("streams", s.arenas.size()).field("allocations", t.allocations);
    json.field("frees", t.frees).field("growths", s.growths);
    json.field("pages_created", s.pages_created).field("pages_moved", s.pages_moved);
    json.field("pages_recalled", s.pages_recalled).field("pages_released", s.pages_released);
    json.field("host_waits", s.host_waits).field("out_of_memory", s.out_of_memory);
    json.field("host_bytes", s.host_bytes).end();
    return std::move(json).text();
  });
}

}  // namespace
}  // namespace stillmap::torch_plugin

using namespace stillmap;
using namespace stillmap::torch_plugin;

void *stillmap_malloc(ssize_t size, int device, CUstream_st *stream) {
  const auto block = allocate(size, device, stream);
  if (!block) [[unlikely]]
    raise(block.error(), size, device);
  return *block;
}

void *stillmap_try_malloc(ssize_t size, int device, CUstream_st *stream) {
  const auto block = allocate(size, device, stream);
  if (block) return *block;
  remember_error(block.error());
  return nullptr;
}

void stillmap_free(void *block, ssize_t, int device, CUstream_st *stream) {
  if (block == nullptr) return;
  caching_allocator *const heap = known_heap(device);
  if (heap != nullptr) [[likely]] {
    const status freed = heap->free(block, stream);
    // A forked child frees what its parent allocated: no error.
    if (freed || forked()) return;
    report_error(freed.error());
    return;
  }
  const operation_scope scope("stillmap_free");
  report_error(make_error(errc::invalid_argument, "nothing was allocated on that device",
                          static_cast<std::uint64_t>(device))
                   .value());
}

void stillmap_record_stream(void *block, CUstream_st *stream) {
  if (block == nullptr || forked()) return;
  const operation_scope scope("stillmap_record_stream");
  bool ours = false;
  each_heap([&](caching_allocator &heap) {
    if (ours || !heap.owns(block)) return;
    ours = true;
    if (const status s = heap.record_use(block, stream); !s) report_error(s.error());
  });
  if (ours) return;
  report_error(make_error(errc::invalid_argument, "no block begins at this address",
                          reinterpret_cast<std::uint64_t>(block), 0, error_unit::address)
                   .value());
}

void stillmap_begin_allocate_to_pool(int device,
                                     std::pair<unsigned long long, unsigned long long> pool,
                                     std::function<bool(CUstream_st *)> takes) {
  const operation_scope scope("stillmap_begin_allocate_to_pool");
  const auto heap = open_heap(device);
  if (!heap) raise(heap.error());
  const status begun = all_heaps().pools.begin(**heap, pool, std::move(takes));
  if (!begun) raise(begun.error());
}

void stillmap_end_allocate_to_pool(int device,
                                   std::pair<unsigned long long, unsigned long long> pool) {
  const operation_scope scope("stillmap_end_allocate_to_pool");
  with_pools(device,
             [&](torch_pools &pools, caching_allocator &heap) { return pools.end(heap, pool); });
}

void stillmap_release_pool(int device, std::pair<unsigned long long, unsigned long long> pool) {
  const operation_scope scope("stillmap_release_pool");
  with_pools(device, [&](torch_pools &pools, caching_allocator &heap) {
    return pools.release(heap, pool);
  });
}

void stillmap_empty_cache() {
  const operation_scope scope("stillmap_empty_cache");
  each_heap([](caching_allocator &heap) {
    if (const auto s = heap.empty_cache(); !s) report_error(s.error());
  });
}

void stillmap_set_memory_fraction(double fraction, int device) {
  const operation_scope scope("stillmap_set_memory_fraction");
  if (!(fraction >= 0 && fraction <= 1)) {
    report_error(make_error(errc::invalid_argument, "the fraction is not between 0 and 1").value());
    return;
  }
  const auto heap = open_heap(device);
  if (!heap) {
    if (!forked()) report_error(heap.error());
    return;
  }
  const auto total = static_cast<double>((*heap)->device().total_memory().bytes());
  const auto part = static_cast<std::size_t>(std::floor(total * fraction));
  (*heap)->set_limit(std::min(part, all_heaps().limit()));
}

size_t stillmap_stats(int device, char *json, size_t room) {
  const caching_allocator *const heap = known_heap(device);
  if (heap == nullptr || forked()) return 0;
  const auto text = stats_of(*heap, device);
  if (!text) {
    report_error(text.error());
    return 0;
  }
  std::snprintf(json, room, "%s", text->c_str());
  return text->size();
}

const char *stillmap_hooks() {
  return "set_record_stream_fn stillmap_record_stream\n"
         "set_reset_fn stillmap_empty_cache\n"
         "set_memory_fraction_fn stillmap_set_memory_fraction\n"
         "set_begin_allocate_to_pool stillmap_begin_allocate_to_pool\n"
         "set_end_allocate_to_pool_fn stillmap_end_allocate_to_pool\n"
         "set_release_pool stillmap_release_pool\n";
}

const char *stillmap_last_error() {
  return last_error_text();
}
