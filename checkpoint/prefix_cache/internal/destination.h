// The arena that a prefix cache comes into.
#pragma once

#include "stillmap/checkpoint/prefix_cache/internal/record.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::prefix_cache {

// `Cache`: block_cache or sequence_cache.
// Errors: invalid_argument (detail().found = the record's shape, expected = the arena's), corrupt.
template <class Cache>
status check_fits(const typename Cache::arena &arena, const typename Cache::record &r) {
  const arena_shape here = Cache::shape_of(arena);
  if (r.shape == here) return Cache::check(arena, r);
  const error e =
      make_error(errc::invalid_argument, "the prefix cache is of an arena of another shape")
          .value();
  return tl::unexpected(
      e.with({.found = r.shape.text(Cache::places), .expected = here.text(Cache::places)}));
}

}  // namespace stillmap::prefix_cache
