#include "stillmap/allocators/engine/heap_growth.h"

#include <utility>
#include "stillmap/allocators/engine/policy.h"

#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

namespace stillmap {
namespace {

// Whether more effort may help. It does not where the host's memory is short.
bool is_out_of_memory(const error &e) {
  return is_device_short(e) || e.is(errc::address_space_exhausted);
}

// What other processes have given for one request. What of it is not used goes back at the end.
class quota_room {
 public:
  explicit quota_room(memory_quota *q) : quota_(q) {}
  ~quota_room() {
    if (made_) quota_->end_room();
  }
  quota_room(const quota_room &) = delete;

  // Asks them, and waits. It may be that the device does not have what the quota has given: then they are asked once
  // more.
  bool make(std::size_t bytes) {
    if (quota_ == nullptr || tries_ == most_tries) return false;
    ++tries_;
    if (made_) quota_->end_room();
    refused_ = quota_->make_room(bytes);
    made_ = refused_.has_value();
    if (!made_) tries_ = most_tries;
    return made_;
  }
  // Adds what the others said to the error of the request.
  result<void *> explain(result<void *> failed) const {
    if (refused_ || refused_.error().is(errc::not_supported)) return failed;
    return tl::unexpected(failed.error().with({.cause = refused_.error().message()}));
  }

 private:
  static constexpr int most_tries = 2;
  memory_quota *const quota_;
  int tries_ = 0;
  bool made_ = false;
  status refused_;
};

}  // namespace

// Between two attempts no lock is held, and the program may release memory.
result<void *> heap_growth::grow(stream_ref s, const block_request &r, bool pending) {
  // Fails before creating every page that the device has.
  if (r.bytes > heap_.device.total_memory().bytes()) {
    ++heap_.counters.growths;
    ++heap_.counters.failed;
    return make_error(errc::out_of_memory, "the request is larger than the device's memory",
                      r.bytes - r.slack, heap_.device.total_memory().bytes(), error_unit::bytes);
  }
  quota_room room(heap_.options.quota.get());
  for (int round = 0;; ++round) {
    std::size_t missing = 0;
    auto found = grow_once(s, r, round == 0, pending, missing);
    if (found || !is_device_short(found.error())) return found;
    // Other processes are asked before the program, which may have to give up what it uses.
    if (missing != 0 && room.make(missing)) continue;
    if (heap_.options.on_out_of_memory && round < policy::max_callback_rounds &&
        heap_.options.on_out_of_memory(static_cast<std::size_t>(r.bytes))) {
      continue;
    }
    ++heap_.counters.failed;
    // The error of the last attempt, which named the pages that were missing, or those of a slab.
    found.error().operation = operation_scope::current();
    found.error().value = r.bytes - r.slack;
    return room.explain(std::move(found));
  }
}

result<void *> heap_growth::grow_once(stream_ref s, const block_request &r, bool first,
                                      bool pending, std::size_t &missing) {
  const growth_lock growing(heap_.growth_mutex);
  arena &a = streams_.arena_for(s);  // a private pool may serve the stream by now
  const bool reclaims = first && pending;
  if (reclaims) {
    STILLMAP_ASSIGN_OR_RETURN(void *const block, allocate_after_reclaim(a, r));
    if (block != nullptr) return block;
  }
  if (first) ++heap_.counters.growths;
  auto found = find_memory(a, r, reclaims);
  if (!found) missing = source_.missing_bytes();
  return found;
}

// Without it, where a block lies would depend on when memory was last short, and a loop whose blocks
// are used on several streams would never come to rest.
result<void *> heap_growth::allocate_after_reclaim(arena &a, const block_request &r) {
  const context_scope inside(heap_.device.driver(), heap_.device.context());
  STILLMAP_RETURN_IF_ERROR(inside.entered());
  const relaxed_capture_mode relaxed(heap_.device.driver());
  STILLMAP_RETURN_IF_ERROR(relaxed.entered());
  reclaimer_.reclaim_pending(a, waiting_for::nothing);
  const lock_guard lock(a.lock());
  return a.allocate(r);
}

// `reclaimed`: the arena's pending frees have been.
result<void *> heap_growth::find_memory(arena &a, const block_request &r, bool reclaimed) {
  const auto try_free = [&](bool whole, search_in where) {
    const lock_guard lock(a.lock());
    return a.allocate_best_fit(r, whole, where);
  };
  const auto try_growing = [&](effort level, bool whole)
                               STILLMAP_REQUIRES(growth) -> result<void *> {
    STILLMAP_ASSIGN_OR_RETURN(extent *const s,
                              source_.extend(a, whole ? r : r.extent_request(), level));
    const lock_guard lock(a.lock());
    return whole ? a.blocks().enter(s, r) : a.blocks().enter_found(s, r);
  };

  const context_scope inside(heap_.device.driver(), heap_.device.context());
  STILLMAP_RETURN_IF_ERROR(inside.entered());
  const relaxed_capture_mode relaxed(heap_.device.driver());
  STILLMAP_RETURN_IF_ERROR(relaxed.entered());
  reclaimer_.reclaim(waiting_for::nothing, reclaimed ? &a : nullptr);
  if (void *const block = source_.allocate_at_lent(a, r)) return block;
  if (void *const block = try_free(false, search_in::own_zone)) return block;
  auto found = try_growing(effort::ordinary, false);
  if (found || !is_out_of_memory(found.error())) return found;

  streams_.end_destroyed();
  // First all free pages anywhere, then also those that become free once streams have passed.
  for (const bool wait : {false, true}) {
    const effort far = wait ? effort::waiting : effort::all;
    if (found.error().is(errc::address_space_exhausted)) source_.free_addresses();
    reclaimer_.reclaim(wait ? waiting_for::everything : waiting_for::nothing);
    heap_.flush_all();
    if (void *const block = try_free(false, search_in::own_zone)) return block;
    found = try_growing(far, false);
    if (found || !is_out_of_memory(found.error())) return found;
    if (void *const block = try_free(false, search_in::all_zones)) return block;
    if (!r.small()) continue;
    // No room for a slab, but perhaps for the block alone.
    if (void *const block = try_free(true, search_in::all_zones)) return block;
    found = try_growing(far, true);
    if (found || !is_out_of_memory(found.error())) return found;
  }
  return found;
}

}  // namespace stillmap
