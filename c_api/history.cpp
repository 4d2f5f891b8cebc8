// Memory maps and history of the caching allocator, as JSON.
#include "stillmap/allocators/report/heap_report.h"
#include "stillmap/c_api/internal/allocator_object.h"
#include "stillmap/c_api/internal/structs.h"

namespace stillmap::c_api {
namespace {

status write_map(const caching_allocator &a, bool with_history, char **json) {
  if (json == nullptr) return missing("the place for the text is NULL");
  STILLMAP_ASSIGN_OR_RETURN(heap_snapshot all, snapshot_of(a));
  if (!with_history) all.history = {};
  STILLMAP_ASSIGN_OR_RETURN(const std::string text, to_json(all));
  STILLMAP_ASSIGN_OR_RETURN(*json, owned_text(text));
  return {};
}

}  // namespace
}  // namespace stillmap::c_api

using namespace stillmap;
using namespace stillmap::c_api;

stillmap_status stillmap_allocator_get_map(stillmap_allocator *allocator, char **json) noexcept {
  clear_output(json);
  return with_allocator("stillmap_allocator_get_map", allocator,
                        [&](caching_allocator &a) { return write_map(a, false, json); });
}

stillmap_status stillmap_allocator_get_history(stillmap_allocator *allocator,
                                               char **json) noexcept {
  clear_output(json);
  return with_allocator("stillmap_allocator_get_history", allocator,
                        [&](caching_allocator &a) { return write_map(a, true, json); });
}

stillmap_status stillmap_allocator_start_history(stillmap_allocator *allocator,
                                                 const stillmap_history_options *options) noexcept {
  return with_allocator("stillmap_allocator_start_history", allocator,
                        [&](caching_allocator &a) -> status {
                          STILLMAP_ASSIGN_OR_RETURN(const auto o, read_struct(options));
                          history_options with;
                          if (o.events != 0) with.events = o.events;
                          with.stack_depth = o.stack_depth;
                          return a.record_history(with);
                        });
}

stillmap_status stillmap_allocator_stop_history(stillmap_allocator *allocator) noexcept {
  return with_allocator("stillmap_allocator_stop_history", allocator,
                        [](caching_allocator &a) -> status {
                          a.stop_history();
                          return {};
                        });
}

stillmap_status stillmap_allocator_forget_history(stillmap_allocator *allocator) noexcept {
  return with_allocator("stillmap_allocator_forget_history", allocator,
                        [](caching_allocator &a) -> status {
                          a.forget_history();
                          return {};
                        });
}
