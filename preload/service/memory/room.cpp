#include "preload/service/memory/room.h"

#include <algorithm>

#include "preload/service/memory/default_pool.h"
#include "preload/service/settings.h"

namespace stillmap::preload {

memory_room room_of(caching_allocator *heap, word free, word total) noexcept {
  const word limit = given_settings().limit;
  word reserved = 0, committed = 0;
  if (heap != nullptr) {
    const caching_allocator_stats s = heap->stats();
    reserved = reserved_of_pool(*heap, s.total.live, s.total.committed);
    committed = std::max<word>(s.total.committed, reserved);
  }
  memory_room room{std::min(free + (committed - reserved), total), std::min(total, limit)};
  room.free = std::min(room.free, limit - std::min(limit, reserved));
  return room;
}

}  // namespace stillmap::preload
