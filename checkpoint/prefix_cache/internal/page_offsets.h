// What the caches of both kinds of arena have in common.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "stillmap/allocators/kv/layout.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::prefix_cache {

// Errors: invalid_argument (too long: value, limit).
status check_key(const std::string &key);
// Where the pages of these page groups are, from the beginning of an arena's addresses, each once, in order.
std::vector<std::size_t> page_offsets(const kv::layout &l, std::size_t arena_bytes,
                                      std::vector<std::size_t> groups);

}  // namespace stillmap::prefix_cache
