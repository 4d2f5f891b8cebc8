#include "stillmap/checkpoint/prefix_cache/internal/block_pages.h"

#include <algorithm>

namespace stillmap::prefix_cache {

std::vector<std::size_t> pages_of(const kv::block_arena &arena, std::span<const entry> entries) {
  const kv::layout &l = arena.layout();
  std::vector<std::size_t> groups;
  for (const entry &e : entries) {
    const kv::page_span pages = l.pages_of(e.block, 1);
    for (std::size_t g = pages.first; g < pages.end(); ++g) groups.push_back(g);
  }
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  std::vector<std::size_t> out;
  const std::size_t range_bytes = arena.range().bytes / l.ranges();
  for (std::size_t r = 0; r < l.ranges(); ++r) {
    for (const std::size_t g : groups) out.push_back(r * range_bytes + g * l.page_bytes());
  }
  return out;
}

}  // namespace stillmap::prefix_cache
