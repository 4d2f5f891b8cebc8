#include "preload/service/memory/peaks.h"

#include <cstddef>

#include "preload/service/memory/device_memory.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::preload {
namespace {

constexpr auto starts = static_cast<std::size_t>(peaks_since::count);

struct earlier_peaks {
  stillmap::mutex mutex;
  // Those before the allocator's own were reset.
  memory_peaks of[starts] STILLMAP_GUARDED_BY(mutex);
};
constinit earlier_peaks all[device_memory::most_devices];

memory_peaks now(caching_allocator &heap) noexcept {
  const caching_allocator_stats s = heap.stats();
  return {s.total.live_peak, std::max(s.committed_peak, s.total.committed)};
}

}  // namespace

memory_peaks peaks_of(caching_allocator &heap, peaks_since since) noexcept {
  earlier_peaks &earlier = all[heap.device().ordinal()];
  const lock_guard lock(earlier.mutex);
  memory_peaks out = now(heap);
  out.raise(earlier.of[static_cast<std::size_t>(since)]);
  return out;
}

void reset_peaks(caching_allocator &heap, peaks_since since) noexcept {
  earlier_peaks &earlier = all[heap.device().ordinal()];
  const lock_guard lock(earlier.mutex);
  for (memory_peaks &p : earlier.of) p.raise(now(heap));
  earlier.of[static_cast<std::size_t>(since)] = {};
  heap.reset_peaks();
}

}  // namespace stillmap::preload
