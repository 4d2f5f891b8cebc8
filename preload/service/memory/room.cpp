#include "preload/service/memory/room.h"

#include <algorithm>

#include "preload/service/memory/default_pool.h"
#include "preload/service/memory/device_memory.h"
#include "preload/service/memory/heaps.h"
#include "preload/service/settings.h"

namespace stillmap::preload {

memory_room room_of(int ordinal, word free, word total) noexcept {
  device_memory *const memory = device_memory::of(ordinal);
  const word limit = memory != nullptr ? memory->limit() : given_settings().limit;
  word live = 0, kept = 0;
  if (caching_allocator *const heap = heaps::of_device(ordinal)) {
    const caching_allocator_stats s = heap->stats();
    live = reserved_of_pool(*heap, s.total.live, s.total.committed);
    kept = std::max<word>(s.total.committed, live) - live;
  }
  memory_room room{std::min(free + kept, total), std::min(total, limit)};
  if (memory != nullptr) {
    live += memory->served().live;
    if (const auto quota = memory->room_in_quota()) {
      room.total = std::min(room.total, quota->limit);
      room.free = std::min(room.free, quota->free + kept);
    }
  }
  room.free = std::min({room.free, limit - std::min(limit, live), room.total});
  return room;
}

}  // namespace stillmap::preload
