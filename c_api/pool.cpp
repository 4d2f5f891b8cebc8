// Private pools of the caching allocator: memory that captured graphs replay on.
#include <vector>

#include "stillmap/c_api/internal/allocator_object.h"

using namespace stillmap;
using namespace stillmap::c_api;

stillmap_status stillmap_pool_create(stillmap_allocator *allocator, uint64_t *pool) noexcept {
  return with_allocator("stillmap_pool_create", allocator, [&](caching_allocator &a) -> status {
    if (pool == nullptr) return missing("the place for the pool is NULL");
    STILLMAP_ASSIGN_OR_RETURN(const private_pool made, a.create_pool());
    *pool = made.id;
    return {};
  });
}

stillmap_status stillmap_pool_retain(stillmap_allocator *allocator, uint64_t pool) noexcept {
  return with_allocator("stillmap_pool_retain", allocator,
                        [&](caching_allocator &a) { return a.retain_pool({pool}); });
}

stillmap_status stillmap_pool_release(stillmap_allocator *allocator, uint64_t pool,
                                      const stillmap_stream *replayed_on,
                                      size_t stream_count) noexcept {
  return with_allocator("stillmap_pool_release", allocator, [&](caching_allocator &a) -> status {
    constexpr std::size_t most_streams = 65536;
    if (stream_count > most_streams) {
      return make_error(errc::invalid_argument, "too many streams", stream_count, most_streams,
                        error_unit::items);
    }
    if (replayed_on == nullptr && stream_count != 0) {
      return missing("a count of streams without their array: it is NULL");
    }
    return a.release_pool({pool}, std::vector<stream_ref>(replayed_on, replayed_on + stream_count));
  });
}

stillmap_status stillmap_pool_begin(stillmap_allocator *allocator, uint64_t pool,
                                    stillmap_stream stream) noexcept {
  return with_allocator("stillmap_pool_begin", allocator, [&](caching_allocator &a) {
    return a.begin_allocate_to_pool({pool}, stream);
  });
}

stillmap_status stillmap_pool_end(stillmap_allocator *allocator, uint64_t pool,
                                  stillmap_stream stream) noexcept {
  return with_allocator("stillmap_pool_end", allocator, [&](caching_allocator &a) {
    return a.end_allocate_to_pool({pool}, stream);
  });
}
