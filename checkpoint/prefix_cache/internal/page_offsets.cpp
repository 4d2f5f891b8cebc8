#include "stillmap/checkpoint/prefix_cache/internal/page_offsets.h"

#include <algorithm>

#include "stillmap/checkpoint/prefix_cache/prefix_cache.h"

namespace stillmap::prefix_cache {

status check_key(const std::string &key) {
  if (key.size() <= max_key_bytes) return {};
  return make_error(errc::invalid_argument, "the key is too long", key.size(), max_key_bytes,
                    error_unit::bytes);
}

std::vector<std::size_t> page_offsets(const kv::layout &l, std::size_t arena_bytes,
                                      std::vector<std::size_t> groups) {
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  std::vector<std::size_t> out;
  const std::size_t range_bytes = arena_bytes / l.ranges();
  for (std::size_t r = 0; r < l.ranges(); ++r) {
    for (const std::size_t g : groups) out.push_back(r * range_bytes + g * l.page_bytes());
  }
  return out;
}

}  // namespace stillmap::prefix_cache
