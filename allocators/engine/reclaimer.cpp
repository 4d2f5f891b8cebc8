#include "stillmap/allocators/engine/reclaimer.h"

#include <algorithm>
#include <vector>

#include "stillmap/vmm/base/host_memory.h"

namespace stillmap {

void reclaimer::reclaim(waiting_for wait, const arena *but_pending_of) noexcept {
  pools_.reclaim(wait);
  for (const auto &a : heap_.arenas) {
    if (a.get() != but_pending_of) reclaim_pending(*a, wait);
    reclaim_unmapping(*a, wait == waiting_for::everything);
  }
}

// What the host has no memory for stays pending.
void reclaimer::reclaim_pending(arena &a, waiting_for wait) noexcept {
  pending_frees &waiting = heap_.returns_of(a).pending;
  pending_list due;
  {
    const lock_guard lock(a.lock());
    due.append(a.blocks().uses.queue);
  }
  while (!due.empty() && waiting.add(due.front())) due.pop_front();
  if (!due.empty()) {
    const lock_guard lock(a.lock());
    due.append(a.blocks().uses.queue);
    a.blocks().uses.queue.append(due);
  }
  const auto passed = [&](stream_use &u) {
    assume_growing();
    return streams_.has_passed(u, wait);
  };
  waiting.collect(passed, [&](const pending_block &b) {
    const lock_guard lock(a.lock());
    heap_.observers.free_completed(a, b.address);
    a.blocks().complete_free(b.address);
  });
}

void reclaimer::reclaim_unmapping(arena &a, bool wait) noexcept {
  std::vector<arena_returns::unmapping_extents> &unmapping = heap_.returns_of(a).unmapping;
  for (arena_returns::unmapping_extents &l : unmapping) {
    const auto past = streams_.has_passed(l.idle, wait);
    if (!past || !*past) continue;
    std::erase_if(l.extents, [&](extent *s) {
      const status gone =
          with_host_memory([&] { return heap_.device.space().collect_range(s->range()); });
      if (!gone) return false;
      const lock_guard lock(a.lock());
      a.extents().unmapped(s);
      return true;
    });
  }
  std::erase_if(unmapping, [](const auto &l) { return l.extents.empty(); });
}

}  // namespace stillmap
