#include "preload/service/memory/room.h"

#include <algorithm>

#include "preload/service/settings.h"

namespace stillmap::preload {

memory_room room_of(caching_allocator *heap, word free, word total) noexcept {
  const word limit = given_settings().limit;
  word live = 0, committed = 0;
  if (heap != nullptr) {
    const caching_allocator_stats s = heap->stats();
    live = s.total.live;
    committed = std::max<word>(s.total.committed, live);
  }
  memory_room room{std::min(free + (committed - live), total), std::min(total, limit)};
  room.free = std::min(room.free, limit - std::min(limit, live));
  return room;
}

}  // namespace stillmap::preload
