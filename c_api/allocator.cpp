// The caching allocator: blocks, limits, statistics.
#include "stillmap/allocators/caching_allocator.h"

#include <memory>

#include "stillmap/c_api/internal/allocator_object.h"
#include "stillmap/c_api/internal/objects.h"
#include "stillmap/c_api/internal/structs.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::c_api {
namespace {

// Passes the events of an allocator to a callback of the program.
class event_forwarder final : public heap_observer {
 public:
  event_forwarder(stillmap_allocator_observer to, void *user) : to_(to), user_(user) {}
  bool on_event(const history_event &e) noexcept override {
    stillmap_allocator_event event{};
    event.struct_size = sizeof event;
    event.action = static_cast<std::uint32_t>(e.action);
    event.address = device_address(e.address).pointer();
    event.bytes = e.bytes;
    event.usable = e.usable;
    event.stream = e.stream.get();
    event.from = device_address(e.from).pointer();
    event.available = e.available;
    return to_(&event, user_) != 0;
  }

 private:
  const stillmap_allocator_observer to_;
  void *const user_;
};

// 0 in an options struct: no limit.
std::size_t limit_of(std::size_t given) {
  return given != 0 ? given : SIZE_MAX;
}

result<caching_allocator_options> options_from(const stillmap_allocator_options *given) {
  STILLMAP_ASSIGN_OR_RETURN(const auto o, read_struct(given));
  STILLMAP_RETURN_IF_ERROR(
      check_choice(o.exportable, STILLMAP_EXPORTABLE_FABRIC, "no such stillmap_exportable"));
  caching_allocator_options options;
  options.limit = limit_of(o.limit_bytes);
  options.soft_limit = limit_of(o.soft_limit_bytes);
  options.page_bytes = o.page_bytes;
  options.create_ahead_bytes = o.create_ahead_bytes;
  if (o.tag != nullptr) options.tag = o.tag;
  options.hint = device_address(o.hint);
  STILLMAP_ASSIGN_OR_RETURN(options.peer_devices, ordinals_of(o.peer_devices, o.peer_device_count));
  options.exportable = static_cast<handle_type>(o.exportable);
  options.record_to = text_of(o.record_to);
  if (o.quota != nullptr) {
    STILLMAP_ASSIGN_OR_RETURN(const quota_object *const quota, find_quota(o.quota));
    options.quota = quota->quota;
  }
  if (o.observer != nullptr) {
    options.observer = std::make_shared<event_forwarder>(o.observer, o.observer_user);
  }
  if (o.on_out_of_memory != nullptr) {
    options.on_out_of_memory = [call = o.on_out_of_memory, user = o.on_out_of_memory_user](
                                   std::size_t bytes) { return call(bytes, user) != 0; };
  }
  return options;
}

void write_report(stillmap_release_report *report, const release_report &r) {
  stillmap_release_report all{};
  all.released = r.released;
  all.kept = r.kept;
  all.private_pools = r.private_pools;
  all.capturing = r.capturing;
  all.pending_free = r.pending_free;
  all.page_edges = r.page_edges;
  write_struct(report, all);
}

}  // namespace
}  // namespace stillmap::c_api

using namespace stillmap;
using namespace stillmap::c_api;

stillmap_status stillmap_allocator_create(stillmap_device *device,
                                          const stillmap_allocator_options *options,
                                          stillmap_allocator **allocator) noexcept {
  return create("stillmap_allocator_create", handle_kind::allocator, allocator,
                [&]() -> result<std::unique_ptr<caching_allocator>> {
                  STILLMAP_ASSIGN_OR_RETURN(stillmap::device *const d, find_device(device));
                  STILLMAP_ASSIGN_OR_RETURN(auto with, options_from(options));
                  return caching_allocator::create(*d, std::move(with));
                });
}

stillmap_status stillmap_allocator_destroy(stillmap_allocator *allocator) noexcept {
  return destroy<caching_allocator>("stillmap_allocator_destroy", allocator,
                                    handle_kind::allocator);
}

stillmap_status stillmap_allocator_allocate(stillmap_allocator *allocator, size_t bytes,
                                            stillmap_stream stream,
                                            const stillmap_allocate_options *options,
                                            void **block) noexcept {
  clear_output(block);
  return with_allocator("stillmap_allocator_allocate", allocator,
                        [&](caching_allocator &a) -> status {
                          if (block == nullptr) return missing("the place for the block is NULL");
                          allocate_options with;
                          if (options != nullptr) {
                            STILLMAP_ASSIGN_OR_RETURN(const auto o, read_struct(options));
                            if (o.alignment != 0) with.alignment = o.alignment;
                            with.zero = o.zero != 0;
                          }
                          STILLMAP_ASSIGN_OR_RETURN(*block, a.allocate(bytes, stream, with));
                          return {};
                        });
}

stillmap_status stillmap_allocator_free(stillmap_allocator *allocator, void *block) noexcept {
  return with_allocator("stillmap_allocator_free", allocator,
                        [&](caching_allocator &a) { return a.free(block); });
}

stillmap_status stillmap_allocator_free_on_stream(stillmap_allocator *allocator, void *block,
                                                  stillmap_stream last_used_on) noexcept {
  return with_allocator("stillmap_allocator_free_on_stream", allocator,
                        [&](caching_allocator &a) { return a.free(block, last_used_on); });
}

stillmap_status stillmap_allocator_record_use(stillmap_allocator *allocator, void *block,
                                              stillmap_stream stream) noexcept {
  return with_allocator("stillmap_allocator_record_use", allocator,
                        [&](caching_allocator &a) { return a.record_use(block, stream); });
}

stillmap_status stillmap_allocator_forget_stream(stillmap_allocator *allocator,
                                                 stillmap_stream stream) noexcept {
  return with_allocator("stillmap_allocator_forget_stream", allocator,
                        [&](caching_allocator &a) { return a.forget_stream(stream); });
}

stillmap_status stillmap_allocator_owns(stillmap_allocator *allocator, const void *address,
                                        int *owns) noexcept {
  return with_allocator("stillmap_allocator_owns", allocator, [&](caching_allocator &a) -> status {
    if (owns == nullptr) return missing("the place for the result is NULL");
    *owns = a.owns(address) ? 1 : 0;
    return {};
  });
}

stillmap_status stillmap_allocator_usable_size(stillmap_allocator *allocator, const void *block,
                                               size_t *bytes) noexcept {
  return with_allocator("stillmap_allocator_usable_size", allocator,
                        [&](caching_allocator &a) -> status {
                          if (bytes == nullptr) return missing("the place for the result is NULL");
                          STILLMAP_ASSIGN_OR_RETURN(*bytes, a.usable_size(block));
                          return {};
                        });
}

stillmap_status stillmap_allocator_empty_cache(stillmap_allocator *allocator,
                                               stillmap_release_report *report) noexcept {
  return with_allocator("stillmap_allocator_empty_cache", allocator,
                        [&](caching_allocator &a) -> status {
                          STILLMAP_RETURN_IF_ERROR(check_optional_struct(report));
                          STILLMAP_ASSIGN_OR_RETURN(const release_report r, a.empty_cache());
                          write_report(report, r);
                          return {};
                        });
}

stillmap_status stillmap_allocator_trim(stillmap_allocator *allocator, size_t keep,
                                        stillmap_release_report *report) noexcept {
  return with_allocator("stillmap_allocator_trim", allocator, [&](caching_allocator &a) -> status {
    STILLMAP_RETURN_IF_ERROR(check_optional_struct(report));
    STILLMAP_ASSIGN_OR_RETURN(const release_report r, a.trim(keep));
    write_report(report, r);
    return {};
  });
}

stillmap_status stillmap_allocator_set_limit(stillmap_allocator *allocator, size_t bytes) noexcept {
  return with_allocator("stillmap_allocator_set_limit", allocator,
                        [&](caching_allocator &a) -> status {
                          a.set_limit(bytes);
                          return {};
                        });
}

stillmap_status stillmap_allocator_set_soft_limit(stillmap_allocator *allocator,
                                                  size_t bytes) noexcept {
  return with_allocator("stillmap_allocator_set_soft_limit", allocator,
                        [&](caching_allocator &a) -> status {
                          a.set_soft_limit(bytes);
                          return {};
                        });
}

stillmap_status stillmap_allocator_get_stats(stillmap_allocator *allocator,
                                             stillmap_allocator_stats *stats) noexcept {
  return with_allocator("stillmap_allocator_get_stats", allocator,
                        [&](caching_allocator &a) -> status {
                          STILLMAP_RETURN_IF_ERROR(check_struct(stats, sizeof *stats));
                          const caching_allocator_stats s = a.stats();
                          const arena_stats &t = s.total;
                          stillmap_allocator_stats all{};
                          all.live = t.live;
                          all.live_peak = t.live_peak;
                          all.requested = t.requested;
                          all.blocks = t.blocks;
                          all.pending_free = t.pending_free;
                          all.committed = t.committed;
                          all.committed_peak = s.committed_peak;
                          all.reserved = t.reserved;
                          all.aliased = t.aliased;
                          all.cached = t.cached;
                          all.free_whole_pages = t.free_whole_pages;
                          all.page_edges = t.page_edges;
                          all.page_bytes = s.page_bytes;
                          all.created_ahead = s.created_ahead;
                          all.limit = a.limit();
                          all.streams = s.arenas.size();
                          all.host_bytes = s.host_bytes;
                          all.allocations = t.allocations;
                          all.frees = t.frees;
                          all.growths = s.growths;
                          all.pages_created = s.pages_created;
                          all.pages_moved = s.pages_moved;
                          all.pages_recalled = s.pages_recalled;
                          all.pages_released = s.pages_released;
                          all.host_waits = s.host_waits;
                          all.out_of_memory = s.out_of_memory;
                          write_struct(stats, all);
                          return {};
                        });
}

stillmap_status stillmap_allocator_reset_peaks(stillmap_allocator *allocator) noexcept {
  return with_allocator("stillmap_allocator_reset_peaks", allocator,
                        [](caching_allocator &a) -> status {
                          a.reset_peaks();
                          return {};
                        });
}

stillmap_status stillmap_allocator_begin_step(stillmap_allocator *allocator,
                                              size_t bytes) noexcept {
  return with_allocator("stillmap_allocator_begin_step", allocator,
                        [&](caching_allocator &a) { return a.begin_step(bytes); });
}

stillmap_status stillmap_allocator_end_step(stillmap_allocator *allocator) noexcept {
  return with_allocator("stillmap_allocator_end_step", allocator,
                        [](caching_allocator &a) -> status {
                          a.end_step();
                          return {};
                        });
}

stillmap_status stillmap_allocator_mark_iteration(stillmap_allocator *allocator) noexcept {
  return with_allocator("stillmap_allocator_mark_iteration", allocator,
                        [](caching_allocator &a) -> status {
                          a.mark_iteration();
                          return {};
                        });
}
