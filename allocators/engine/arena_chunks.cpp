// The chunks of an arena: each is one range of its extent map, committed as a whole.
#include <algorithm>

#include "stillmap/allocators/engine/arena.h"
#include "stillmap/allocators/engine/room.h"

namespace stillmap {

void arena::add_chunk(const chunk &c, address_zone zone) {
  make_room(chunks);
  extents.add(c.range, true, zone);
  chunks.push_back(c);
}

// Those of a private pool are used: its graphs replay on them.
bool arena::unused(const chunk &c) {
  if (pinned) return false;
  const extent &first = *extents.at(c.range.begin.value());
  return first.state == extent_state::free && first.range() == c.range;
}

std::size_t arena::unused_chunk_bytes() {
  flush();
  std::size_t sum = 0;
  for (const chunk &c : chunks) sum += unused(c) ? c.allocated.bytes : 0;
  return sum;
}

// Prefers the smallest chunk that suffices, otherwise takes the largest, and so on.
std::vector<arena::chunk> arena::take_chunks(std::size_t bytes) {
  flush();
  std::vector<chunk> there, out;
  std::copy_if(chunks.begin(), chunks.end(), std::back_inserter(there),
               [&](const chunk &c) STILLMAP_REQUIRES(lock) { return unused(c); });
  std::sort(there.begin(), there.end(), [](const chunk &x, const chunk &y) {
    return x.allocated.bytes < y.allocated.bytes ||
           (x.allocated.bytes == y.allocated.bytes && x.range.begin > y.range.begin);
  });
  for (std::size_t got = 0; got < bytes && !there.empty(); got += out.back().allocated.bytes) {
    auto one = std::find_if(there.begin(), there.end(),
                            [&](const chunk &c) { return c.allocated.bytes >= bytes - got; });
    if (one == there.end()) --one;
    out.push_back(*one);
    there.erase(one);
  }
  if (out.empty()) return out;
  for (const chunk &c : out) extents.set_aside(c.range);
  return out;
}

void arena::put_back(const chunk &c) {
  extents.put_back(extents.at(c.range.begin.value()));
}

void arena::remove(const chunk &c) {
  extents.unmapped(extents.at(c.range.begin.value()));
  extents.remove(c.range);
  std::erase_if(chunks, [&](const chunk &other) { return other.range == c.range; });
}

}  // namespace stillmap
