// Admission: a limit that several processes share.
#include <chrono>
#include <memory>

#include "stillmap/c_api/internal/objects.h"
#include "stillmap/c_api/internal/structs.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::c_api {
namespace {

result<shared_quota_options> options_from(const stillmap_quota_options *given) {
  STILLMAP_ASSIGN_OR_RETURN(const auto o, read_struct(given));
  shared_quota_options options;
  options.limit = o.limit_bytes;
  options.terms.minimum = o.minimum_bytes;
  if (o.maximum_bytes != 0) options.terms.maximum = o.maximum_bytes;
  options.terms.priority = o.priority;
  if (o.timeout_milliseconds > 0) {
    options.timeout = std::chrono::milliseconds(o.timeout_milliseconds);
  } else if (o.timeout_milliseconds < 0) {
    options.timeout = std::chrono::milliseconds(0);
  }
  if (o.device != nullptr) {
    STILLMAP_ASSIGN_OR_RETURN(const device *const d, find_device(o.device));
    options.device = *d;
  }
  return options;
}

template <class Act>
stillmap_status with_quota(const char *operation, const stillmap_quota *handle, Act act) noexcept {
  return enter(operation, [&]() -> status {
    STILLMAP_ASSIGN_OR_RETURN(quota_object *const q, find_quota(handle));
    return act(*q->quota);
  });
}

}  // namespace
}  // namespace stillmap::c_api

using namespace stillmap;
using namespace stillmap::c_api;

stillmap_status stillmap_quota_open(const char *name, const stillmap_quota_options *options,
                                    stillmap_quota **quota) noexcept {
  return create("stillmap_quota_open", handle_kind::quota, quota,
                [&]() -> result<std::unique_ptr<quota_object>> {
                  if (name == nullptr) return missing("the name is NULL");
                  auto made = std::make_unique<quota_object>();
                  STILLMAP_ASSIGN_OR_RETURN(auto with, options_from(options));
                  STILLMAP_ASSIGN_OR_RETURN(made->quota, shared_quota::open(name, std::move(with)));
                  return made;
                });
}

stillmap_status stillmap_quota_close(stillmap_quota *quota) noexcept {
  return destroy<quota_object>("stillmap_quota_close", quota, handle_kind::quota);
}

stillmap_status stillmap_quota_remove(const char *name) noexcept {
  return enter("stillmap_quota_remove", [&]() -> status {
    if (name == nullptr) return missing("the name is NULL");
    return shared_quota::remove(name);
  });
}

stillmap_status stillmap_quota_start_thread(stillmap_quota *quota) noexcept {
  return with_quota("stillmap_quota_start_thread", quota,
                    [](shared_quota &q) { return q.start_thread(); });
}

stillmap_status stillmap_quota_poll(stillmap_quota *quota, uint64_t *released_bytes) noexcept {
  return with_quota("stillmap_quota_poll", quota, [&](shared_quota &q) -> status {
    STILLMAP_ASSIGN_OR_RETURN(const std::uint64_t released, q.poll());
    if (released_bytes != nullptr) *released_bytes = released;
    return {};
  });
}

stillmap_status stillmap_quota_reserve(stillmap_quota *quota, uint64_t bytes) noexcept {
  return with_quota("stillmap_quota_reserve", quota,
                    [&](shared_quota &q) { return q.reserve(bytes); });
}

stillmap_status stillmap_quota_release(stillmap_quota *quota, uint64_t bytes) noexcept {
  return with_quota("stillmap_quota_release", quota,
                    [&](shared_quota &q) { return q.release(bytes); });
}

stillmap_status stillmap_quota_set_limit(stillmap_quota *quota, uint64_t bytes,
                                         int *deferred) noexcept {
  return with_quota("stillmap_quota_set_limit", quota, [&](shared_quota &q) -> status {
    STILLMAP_ASSIGN_OR_RETURN(const quota_change change, q.set_limit(bytes));
    if (deferred != nullptr) *deferred = change == quota_change::deferred;
    return {};
  });
}

stillmap_status stillmap_quota_get_stats(stillmap_quota *quota,
                                         stillmap_quota_stats *stats) noexcept {
  return with_quota("stillmap_quota_get_stats", quota, [&](shared_quota &q) -> status {
    STILLMAP_RETURN_IF_ERROR(check_struct(stats, sizeof *stats));
    STILLMAP_ASSIGN_OR_RETURN(const quota_stats now, q.stats());
    stillmap_quota_stats all{};
    all.limit_bytes = now.limit;
    all.reserved_bytes = now.reserved;
    all.own_bytes = now.own;
    all.device_bytes = now.device_bytes;
    all.outside_bytes = now.outside;
    all.revision = now.revision;
    all.participants = now.participants.size();
    all.waits = now.waits.waits;
    all.granted = now.waits.granted;
    all.busy = now.waits.busy;
    write_struct(stats, all);
    return {};
  });
}
