#include "stillmap/allocators/engine/heap.h"

#include <algorithm>
#include <utility>

#include "stillmap/allocators/internal/room.h"

namespace stillmap {

heap::heap(stillmap::device d, std::size_t page, bool chunks, caching_allocator_options o,
           std::shared_ptr<trace_recorder> recorder)
    : device(std::move(d)),
      page_bytes(page),
      in_chunks(chunks),
      options(std::move(o)),
      limit(options.limit),
      soft_limit(options.soft_limit),
      observers(options.observer, std::move(recorder), device.ordinal()) {}

std::size_t heap::ceiling() const {
  return std::min(limit.load(), device.total_memory().bytes());
}

arena &heap::make_arena(stream_ref s) {
  const auto made = std::make_shared<arena>(arenas.size() + 1, s, page_bytes, true, in_chunks,
                                            shared, &observers.history);
  returns.resize(arenas.size() + 1);
  make_room(arenas);
  {
    const lock_guard lock(arenas_mutex);
    reported_arenas.push_back(made);
  }
  arenas.push_back(made);
  return *made;
}

void heap::flush_all() {
  for (const auto &a : arenas) {
    const lock_guard lock(a->lock());
    a->blocks().flush();
  }
}

std::size_t heap::moved_bytes() const {
  std::uint64_t pages = 0;
  for (const auto &a : arenas) {
    const lock_guard lock(a->lock());
    pages += a->moved();
  }
  return static_cast<std::size_t>(pages) * page_bytes;
}

std::size_t heap::committed() const {
  std::size_t sum = 0;
  for (const auto &a : arenas) {
    const lock_guard lock(a->lock());
    sum += a->extents().committed_bytes();
  }
  return sum;
}

std::size_t heap::live() const {
  std::size_t sum = 0;
  for (const auto &a : arenas) {
    const lock_guard lock(a->lock());
    sum += static_cast<std::size_t>(a->blocks().counters().live);
  }
  return sum;
}

std::size_t heap::pinned_free_bytes() const {
  std::size_t sum = 0;
  for (const auto &a : arenas) {
    const lock_guard lock(a->lock());
    if (a->service_locked().pinned)
      sum += a->extents().free_bytes() + static_cast<std::size_t>(a->blocks().cached_bytes());
  }
  return sum;
}

void heap::note_peaks(std::size_t live_bytes) {
  counters.live_peak = std::max(counters.live_peak.load(), live_bytes);
  counters.reported_live_peak = std::max(counters.reported_live_peak.load(), live_bytes);
  counters.reported_committed_peak = std::max(counters.reported_committed_peak.load(), committed());
}

}  // namespace stillmap
