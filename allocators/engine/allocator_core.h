// The implementation of caching_allocator: the fast path, and the parts that serve what it refuses. Internal.
// docs/allocator.md#one-allocate-through-every-layer
//
// A thread whose request fits into memory that its stream has takes that arena's lock alone, and waits for no
// driver call of another: growth has a lock of its own. Locks: heap.h
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "stillmap/allocators/allocator_types.h"
#include "stillmap/allocators/engine/graph_pools.h"
#include "stillmap/allocators/engine/heap.h"
#include "stillmap/allocators/engine/heap_growth.h"
#include "stillmap/allocators/engine/memory_source.h"
#include "stillmap/allocators/engine/reclaimer.h"
#include "stillmap/allocators/engine/stream_tracker.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/remap.h"

namespace stillmap {

class allocator_core {
 public:
  // `pages`: nullptr where the device cannot map pages.
  allocator_core(stillmap::device d, std::shared_ptr<page_pool> pages,
                 std::vector<access_grant> access, caching_allocator_options options,
                 std::shared_ptr<trace_recorder> recorder);
  ~allocator_core();

  // The fast path: no driver call, no host memory. Inlined into the interface.
  [[gnu::always_inline]] result<void *> allocate(std::size_t bytes, stream_ref s,
                                                 const allocate_options &options) {
    if (heap_.observers.enabled()) [[unlikely]]
      return allocate_notified(bytes, s, options);
    if (bytes - 1 < largest_request && options.alignment == allocation_granule && !options.zero &&
        !heap_.in_child()) [[likely]] {
      if (arena *const a = heap_.streams.of(s)) [[likely]] {
        const block_request r = request_for(bytes, allocation_granule);
        a->lock().lock();
        void *const block = a->service_locked().stream == s ? a->blocks().reuse(r) : nullptr;
        if (block == nullptr) [[unlikely]]
          return allocate_refused(bytes, s, options, *a);
        a->lock().unlock();
        return block;
      }
    }
    return allocate_slow(bytes, s, options);
  }
  [[gnu::always_inline]] status free(void *block, std::optional<stream_ref> last_used_on) {
    if (block == nullptr) return success();
    if (heap_.observers.enabled()) [[unlikely]]
      return free_notified(block, last_used_on);
    const auto address = reinterpret_cast<std::uintptr_t>(block);
    if (arena *const a = heap_.addresses.at(address)) [[likely]] {
      if (!heap_.in_child()) [[likely]] {
        free_outcome outcome = free_outcome::needs_event;
        {
          const lock_guard lock(a->lock());
          if (!last_used_on || a->service_locked().serves(*last_used_on))
            outcome = a->blocks().free(address);
        }
        if (outcome == free_outcome::done) [[likely]]
          return success();
      }
    }
    return free_slow(block, last_used_on);
  }

  status record_use(void *block, stream_ref s);
  status forget_stream(stream_ref named);
  result<release_report> trim(std::size_t keep);
  // For another process: gives free memory back to the device, and waits for work that still uses it. Returns the
  // bytes.
  std::uint64_t give_back(std::uint64_t bytes) noexcept;
  status begin_step(std::size_t bytes);
  void end_step() noexcept;
  result<std::size_t> usable_size(const void *block) const;
  result<virtual_range> find_block(const void *inside) const;
  bool owns(const void *address) const {
    return heap_.addresses.at(reinterpret_cast<std::uintptr_t>(address)) != nullptr;
  }
  caching_allocator_stats stats() const;
  // The allocator ends: its live blocks end in the trace too.
  void close_trace() const { heap_.observers.allocator_destroyed(this); }

  bool in_child() const { return heap_.in_child(); }
  heap &shared_heap() { return heap_; }
  graph_pools &pools() { return pools_; }

 private:
  // An upper bound on any device's memory, in bytes; rounding up cannot overflow below it.
  static constexpr std::size_t largest_request = std::size_t{1} << 46;
  // `return {}` would clear all bytes of the status before it sets one.
  struct success final : status {
    success() noexcept {}
  };
  static block_request request_for(std::size_t bytes, std::size_t alignment) {
    block_request r;
    r.bytes = (bytes + allocation_granule - 1) & ~(allocation_granule - 1);
    r.slack = static_cast<std::uint16_t>(r.bytes - bytes);
    r.alignment = std::max(alignment, allocation_granule);
    return r;
  }

  // What the fast path does not serve. Not inlined: it would cost that registers.
  // Unlocks the arena whose fast path, which serves alignment to the granule alone, refused the request.
  [[gnu::noinline]] result<void *> allocate_refused(std::size_t bytes, stream_ref s,
                                                    const allocate_options &options,
                                                    arena &refused) noexcept
      STILLMAP_RELEASE(refused.lock());
  [[gnu::noinline]] result<void *> allocate_slow(std::size_t bytes, stream_ref s,
                                                 const allocate_options &options,
                                                 bool searched = false) noexcept;
  [[gnu::noinline]] result<void *> serve(std::size_t bytes, stream_ref named,
                                         const allocate_options &options, bool searched);
  status free_slow(void *block, std::optional<stream_ref> last_used_on) noexcept;
  status zero(void *block, std::size_t bytes, stream_ref s);
  // While requests are observed. Not inlined either: history_ring::capture.
  [[gnu::noinline]] result<void *> allocate_notified(std::size_t bytes, stream_ref s,
                                                     const allocate_options &options);
  [[gnu::noinline]] status free_notified(void *block, std::optional<stream_ref> last_used_on);
  result<void *> refuse_suspended() const noexcept;

  heap heap_;
  stream_tracker streams_{heap_};
  graph_pools pools_{heap_, streams_};
  reclaimer reclaimer_{heap_, streams_, pools_};
  const std::unique_ptr<memory_source> source_;
  std::atomic<int> steps_ = 0;  // that are in progress: nothing is given back
  heap_growth growth_{heap_, streams_, reclaimer_, *source_};
};

}  // namespace stillmap
