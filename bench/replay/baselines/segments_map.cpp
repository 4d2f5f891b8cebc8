// The segments as a heap map, with an arena for each stream and kind of request.
#include <algorithm>

#include "bench/replay/baselines/segments.h"

namespace stillmap::replay {
namespace {

heap_part part_of(const segment_block &b) {
  if (!b.mapped) return heap_part::uncommitted;
  if (b.free) return heap_part::free;
  return b.waiting != 0 ? heap_part::pending_free : heap_part::live;
}

}  // namespace

std::optional<heap_snapshot> segments::snapshot() const {
  // A segment is known by its first block.
  std::vector<const segment_block *> firsts;
  for (const segment_block &b : storage_) {
    if (b.size != 0 && b.before == nullptr) firsts.push_back(&b);
  }
  std::sort(firsts.begin(), firsts.end(), [](const segment_block *a, const segment_block *b) {
    if (a->on != b->on) return std::less<>()(a->on, b->on);
    return a->small != b->small ? b->small : a->at < b->at;  // large requests come first
  });
  heap_snapshot out;
  out.device = device_.name();
  out.ordinal = device_.ordinal();
  const segment_block *before = nullptr;
  for (const segment_block *first : firsts) {
    if (before == nullptr || before->on != first->on || before->small != first->small) {
      heap_map::arena &a = out.map.arenas.emplace_back();
      a.id = out.map.arenas.size();
      a.stream = stream_ref(first->on);
      a.name = first->small ? "small requests" : "large requests";
    }
    before = first;
    heap_map::arena &a = out.map.arenas.back();
    std::size_t bytes = 0;
    for (const segment_block *b = first; b != nullptr; b = b->after) {
      heap_extent s;
      s.range = {device_address(b->at), b->size};
      s.part = part_of(*b);
      s.requested = s.part == heap_part::live ? b->size : 0;
      a.extents.push_back(s);
      bytes += b->size;
    }
    a.reserved.push_back({device_address(first->at), bytes});
  }
  return out;
}

}  // namespace stillmap::replay
