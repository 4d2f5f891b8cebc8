#include "stillmap/allocators/torch/torch_allocator.h"

#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <system_error>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/allocators/internal/fork_watch.h"
#include "stillmap/allocators/torch/internal/last_error.h"
#include "stillmap/allocators/torch/internal/torch_pools.h"
#include "stillmap/allocators/torch/internal/torch_settings.h"
#include "stillmap/vmm/internal/host_memory.h"
#include "stillmap/vmm/internal/try.h"

namespace stillmap::torch_plugin {
namespace {

constexpr const char *allocating = "stillmap_malloc";
constexpr const char *freeing = "stillmap_free";
constexpr std::size_t most_devices = 128;  // at least as many as CUDA supports
constexpr int most_complaints = 16;

// The allocators of all devices. Never destroyed: Python frees tensors while the process ends,
// after this library's destructors would have run, and perhaps after the driver's.
struct heaps {
  fork_watch born;
  std::mutex making;  // held while a device is opened; first in the lock order
  std::array<std::atomic<caching_allocator *>, most_devices> of_device{};
  torch_pools pools;
};

std::atomic<heaps *> &slot() {
  static constinit std::atomic<heaps *> all{nullptr};
  return all;
}

// Needs no lock and no destructor; see `heaps`.
heaps &all_heaps() {
  heaps *known = slot().load(std::memory_order_acquire);
  if (known != nullptr) return *known;
  auto made = std::make_unique<heaps>();
  if (slot().compare_exchange_strong(known, made.get(), std::memory_order_acq_rel)) {
    return *made.release();
  }
  return *known;
}

void complain(const error &e) {
  remember_error(e);
  static constinit std::atomic<int> said{0};
  if (said.fetch_add(1, std::memory_order_relaxed) < most_complaints) {
    std::fprintf(stderr, "stillmap: %s\n", last_error_text());
  }
}

caching_allocator *known_heap(int device) {
  heaps *const all = slot().load(std::memory_order_acquire);
  if (all == nullptr || static_cast<std::size_t>(device) >= most_devices) return nullptr;
  return all->of_device[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
}

result<caching_allocator *> open_heap(int ordinal) {
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= most_devices) {
    return make_error(errc::invalid_argument, allocating, "there is no such device",
                      static_cast<std::uint64_t>(ordinal));
  }
  heaps &all = all_heaps();
  // Before the lock, which a thread of the parent may have held at the fork.
  if (all.born.in_child()) {
    return make_error(errc::not_supported, allocating,
                      "the process was forked: CUDA does not work in a child");
  }
  std::atomic<caching_allocator *> &place = all.of_device[static_cast<std::size_t>(ordinal)];
  const std::lock_guard lock(all.making);
  if (caching_allocator *const made = place.load(std::memory_order_relaxed)) return made;
  STILLMAP_ASSIGN_OR_RETURN(const settings say, read_settings());
  STILLMAP_ASSIGN_OR_RETURN(const device d, device::open(ordinal));
  caching_allocator_options options;
  options.limit = say.limit;
  if (say.peers) options.peer_devices = d.capabilities().peers;
  STILLMAP_ASSIGN_OR_RETURN(auto made, caching_allocator::create(d, std::move(options)));
  place.store(made.get(), std::memory_order_release);
  return made.release();
}

result<caching_allocator *> make_heap(int ordinal) {
  return with_host_memory(allocating, [&] { return open_heap(ordinal); });
}

result<void *> allocate(ssize_t size, int ordinal, stream_handle stream) {
  if (size < 0) {
    return make_error(errc::invalid_argument, allocating, "the size is negative");
  }
  if (size == 0) return nullptr;
  caching_allocator *heap = known_heap(ordinal);
  if (heap == nullptr) [[unlikely]] {
    STILLMAP_ASSIGN_OR_RETURN(heap, make_heap(ordinal));
  }
  torch_pools &pools = slot().load(std::memory_order_relaxed)->pools;
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
  heaps *const all = slot().load(std::memory_order_acquire);
  if (all == nullptr || all->born.in_child()) return;
  for (const auto &place : all->of_device) {
    if (caching_allocator *const heap = place.load(std::memory_order_acquire)) use(*heap);
  }
}

bool forked() {
  heaps *const all = slot().load(std::memory_order_acquire);
  return all != nullptr && all->born.in_child();
}

// Calls use(pools, heap) for a device, unless it was never used or the process was forked.
template <class Use>
void with_pools(int device, Use use) {
  caching_allocator *const heap = known_heap(device);
  if (heap == nullptr || forked()) return;
  if (const status s = use(all_heaps().pools, *heap); !s) complain(s.error());
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
    complain(freed.error());
    return;
  }
  complain(error{make_error_code(errc::invalid_argument), freeing,
                 "nothing was allocated on that device", static_cast<std::uint64_t>(device)});
}

void stillmap_record_stream(void *block, CUstream_st *stream) {
  if (block == nullptr || forked()) return;
  bool ours = false;
  each_heap([&](caching_allocator &heap) {
    if (ours || !heap.owns(block)) return;
    ours = true;
    if (const status s = heap.record_use(block, stream); !s) complain(s.error());
  });
  if (ours) return;
  complain(error{make_error_code(errc::invalid_argument), "stillmap_record_stream",
                 "no block begins at this address", reinterpret_cast<std::uint64_t>(block), 0,
                 error_unit::address});
}

void stillmap_begin_allocate_to_pool(int device,
                                     std::pair<unsigned long long, unsigned long long> pool,
                                     std::function<bool(CUstream_st *)> takes) {
  const auto heap = make_heap(device);
  if (!heap) raise(heap.error());
  const status begun = all_heaps().pools.begin(**heap, pool, std::move(takes));
  if (!begun) raise(begun.error());
}

void stillmap_end_allocate_to_pool(int device,
                                   std::pair<unsigned long long, unsigned long long> pool) {
  with_pools(device,
             [&](torch_pools &pools, caching_allocator &heap) { return pools.end(heap, pool); });
}

void stillmap_release_pool(int device, std::pair<unsigned long long, unsigned long long> pool) {
  with_pools(device, [&](torch_pools &pools, caching_allocator &heap) {
    return pools.release(heap, pool);
  });
}

void stillmap_empty_cache() {
  each_heap([](caching_allocator &heap) {
    if (const auto s = heap.empty_cache(); !s) complain(s.error());
  });
}

void stillmap_set_memory_fraction(double fraction, int device) {
  constexpr const char *op = "stillmap_set_memory_fraction";
  if (!(fraction >= 0 && fraction <= 1)) {
    complain(
        error{make_error_code(errc::invalid_argument), op, "the fraction is not between 0 and 1"});
    return;
  }
  const auto heap = make_heap(device);
  if (!heap) {
    if (!forked()) complain(heap.error());
    return;
  }
  const auto total = static_cast<double>((*heap)->device().total_memory().bytes());
  (*heap)->set_limit(static_cast<std::size_t>(std::floor(total * fraction)));
}

size_t stillmap_stats(int device, char *json, size_t room) {
  const caching_allocator *const heap = known_heap(device);
  if (heap == nullptr || forked()) return 0;
  const caching_allocator_stats s = heap->stats();
  const int length = std::snprintf(
      json, room,
      "{\"device\": %d, \"live_bytes\": %zu, \"live_peak_bytes\": %zu, \"requested_bytes\": %zu, "
      "\"blocks\": %zu, \"pending_free_bytes\": %zu, \"committed_bytes\": %zu, "
      "\"committed_peak_bytes\": %zu, "
      "\"reserved_bytes\": %zu, \"free_whole_page_bytes\": %zu, \"page_edge_bytes\": %zu, "
      "\"limit_bytes\": %zu, \"streams\": %zu, \"allocations\": %llu, \"frees\": %llu, "
      "\"growths\": %llu, \"pages_created\": %llu, \"pages_moved\": %llu, \"pages_recalled\": "
      "%llu, "
      "\"pages_released\": %llu, \"host_waits\": %llu, \"out_of_memory\": %llu, \"host_bytes\": "
      "%zu}",
      device, s.total.live, s.total.live_peak, s.total.requested, s.total.blocks,
      s.total.pending_free, s.total.committed, s.committed_peak, s.total.reserved,
      s.total.free_whole_pages, s.total.page_edges, heap->limit(), s.arenas.size(),
      static_cast<unsigned long long>(s.total.allocations),
      static_cast<unsigned long long>(s.total.frees), static_cast<unsigned long long>(s.growths),
      static_cast<unsigned long long>(s.pages_created),
      static_cast<unsigned long long>(s.pages_moved),
      static_cast<unsigned long long>(s.pages_recalled),
      static_cast<unsigned long long>(s.pages_released),
      static_cast<unsigned long long>(s.host_waits),
      static_cast<unsigned long long>(s.out_of_memory), s.host_bytes);
  return length > 0 ? static_cast<size_t>(length) : 0;
}

const char *stillmap_last_error() {
  return last_error_text();
}
