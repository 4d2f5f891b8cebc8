#include "preload/service/memory/default_pool.h"

#include <algorithm>

#include "preload/service/memory/current_context.h"
#include "preload/service/memory/heaps.h"
#include "preload/service/memory/peaks.h"
#include "preload/service/serve.h"

namespace stillmap::preload {
namespace {

// CUmemPool_attribute. Source: cuda.h.
enum pool_attribute : number {
  release_threshold = 4,
  reserved_now = 5,
  reserved_peak = 6,
  used_now = 7,
  used_peak = 8
};

std::uint64_t ours(caching_allocator &heap, number attribute) noexcept {
  const arena_stats now = heap.stats().total;
  switch (attribute) {
    case reserved_now:
      return reserved_of_pool(heap, now.live, now.committed);
    case reserved_peak: {
      const memory_peaks peaks = peaks_of(heap, peaks_since::reserved_reset);
      return reserved_of_pool(heap, peaks.live, peaks.committed);
    }
    case used_now:
      return now.live;
    case used_peak:
      return peaks_of(heap, peaks_since::used_reset).live;
    default:
      return 0;
  }
}

bool is_default_pool(word pool) noexcept {
  const int device = pool != 0 ? current_device() : -1;
  word usual = 0;
  return device >= 0 &&
         pass_on<function::cuDeviceGetDefaultMemPool>(
             reinterpret_cast<word>(&usual), static_cast<number>(device)) == code::success &&
         pool == usual;
}

}  // namespace

caching_allocator *heap_of_pool(word pool) noexcept {
  return is_default_pool(pool) ? heaps::current() : nullptr;
}

std::uint64_t reserved_of_pool(caching_allocator &heap, std::uint64_t live,
                               std::uint64_t committed) noexcept {
  word pool = 0, threshold = 0;
  if (!heap.device().capabilities().memory_pools ||
      pass_on<function::cuDeviceGetDefaultMemPool>(reinterpret_cast<word>(&pool),
                                                   static_cast<number>(heap.device().ordinal())) !=
          code::success ||
      pass_on<function::cuMemPoolGetAttribute>(
          pool, number{release_threshold}, reinterpret_cast<word>(&threshold)) != code::success) {
    return live;
  }
  return std::max(live, std::min<std::uint64_t>(committed, threshold));
}

driver_code serve(numbered<function::cuMemPoolGetAttribute>, word pool, number attribute,
                  word value) noexcept {
  const driver_code result = pass_on<function::cuMemPoolGetAttribute>(pool, attribute, value);
  if (result != code::success || attribute < reserved_now || attribute > used_peak) return result;
  if (caching_allocator *const heap = heap_of_pool(pool)) {
    *reinterpret_cast<word *>(value) += ours(*heap, attribute);
  }
  return result;
}

// The peaks can be set to zero only, which resets them.
driver_code serve(numbered<function::cuMemPoolSetAttribute>, word pool, number attribute,
                  word value) noexcept {
  const driver_code result = pass_on<function::cuMemPoolSetAttribute>(pool, attribute, value);
  note_work();
  if (result != code::success || (attribute != reserved_peak && attribute != used_peak))
    return result;
  if (caching_allocator *const heap = heap_of_pool(pool)) {
    reset_peaks(*heap,
                attribute == used_peak ? peaks_since::used_reset : peaks_since::reserved_reset);
  }
  return result;
}

driver_code serve(numbered<function::cuMemPoolTrimTo>, word pool, word keep) noexcept {
  const driver_code result = pass_on<function::cuMemPoolTrimTo>(pool, keep);
  note_work();
  if (result != code::success) return result;
  if (caching_allocator *const heap = heap_of_pool(pool)) static_cast<void>(heap->trim(keep));
  return result;
}

}  // namespace stillmap::preload
