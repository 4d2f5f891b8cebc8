#include "preload/service/memory/default_pool.h"

#include "preload/service/memory/heaps.h"
#include "preload/service/serve.h"

namespace stillmap::preload {
namespace {

// CUmemPool_attribute. Source: cuda.h.
enum pool_attribute : number { reserved_now = 5, reserved_peak = 6, used_now = 7, used_peak = 8 };

std::uint64_t ours(const caching_allocator_stats &s, number attribute) noexcept {
  switch (attribute) {
    case reserved_now:
      return s.total.committed;
    case reserved_peak:
      return s.committed_peak;
    case used_now:
      return s.total.live;
    case used_peak:
      return s.total.live_peak;
    default:
      return 0;
  }
}

bool is_default_pool(word pool) noexcept {
  number device = 0;
  word usual = 0;
  return pool != 0 &&
         pass_on<function::cuCtxGetDevice>(reinterpret_cast<word>(&device)) == code::success &&
         pass_on<function::cuDeviceGetDefaultMemPool>(reinterpret_cast<word>(&usual), device) ==
             code::success &&
         pool == usual;
}

}  // namespace

caching_allocator *heap_of_pool(word pool) noexcept {
  return is_default_pool(pool) ? heaps::current() : nullptr;
}

driver_code serve(numbered<function::cuMemPoolGetAttribute>, word pool, number attribute,
                  word value) noexcept {
  const driver_code result = pass_on<function::cuMemPoolGetAttribute>(pool, attribute, value);
  if (result != code::success || attribute < reserved_now || attribute > used_peak) return result;
  if (caching_allocator *const heap = heap_of_pool(pool)) {
    *reinterpret_cast<word *>(value) += ours(heap->stats(), attribute);
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
