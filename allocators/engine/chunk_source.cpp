#include "stillmap/allocators/engine/chunk_source.h"

#include <algorithm>
#include <new>

#include "stillmap/allocators/engine/heap_report.h"
#include "stillmap/allocators/engine/policy.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

namespace stillmap {
namespace {

constexpr const char *allocate_op = "caching_allocator::allocate";

}  // namespace

// ---- allocating chunks ----

// Beyond effort::ordinary, unused chunks are freed to make room.
result<extent *> chunk_source::extend(arena &a, const block_request &r, effort level) {
  const bool quiet = streams_.capturing(a);
  const auto bytes = static_cast<std::size_t>(r.bytes);
  const std::size_t slack =
      r.alignment > heap_.page_bytes ? static_cast<std::size_t>(r.alignment) : 0;
  const std::size_t least = round_up(bytes + slack, heap_.page_bytes),
                    generous = std::max(least, policy::shared_chunk_bytes(bytes));
  const std::size_t soft = heap_.soft_limit, most = heap_.limit;
  status kept;  // chunks that cannot be freed stay: not a failure
  if (!quiet && chunk_bytes_ + least > soft) {
    release_chunks(allocate_op, chunk_bytes_ + least - soft, false, kept);
  }
  auto got = allocate_chunk(chunk_bytes_ + generous > soft ? least : generous);
  if (!got && is_device_short(got.error()) && generous != least) got = allocate_chunk(least);
  if (level != effort::ordinary && !quiet) {
    // Doubles the amount, because free device memory need not be contiguous.
    std::size_t wanted = chunk_bytes_ + least > most ? chunk_bytes_ + least - most : least;
    for (; !got && is_device_short(got.error()); wanted *= 2) {
      if (release_chunks(allocate_op, wanted, true, kept) == 0) break;
      got = allocate_chunk(least);
    }
  }
  if (!got) return tl::unexpected<error>(got.error());

  try {
    heap_.addresses.expect(got->range);
    const lock_guard lock(a.lock);
    a.add_chunk(*got, a.zone_of(r.bytes));
    heap_.addresses.add(got->range, &a);
  } catch (const std::bad_alloc &) {
    undo_chunk(*got);
    throw;
  }
  heap_.observers.addresses_reserved(a, got->range);  // a chunk is addresses and memory at once
  heap_.observers.pages_mapped(a, got->range);
  heap_.counters.created += got->range.bytes / heap_.page_bytes;
  extent *block = nullptr;
  {
    const lock_guard lock(a.lock);
    block = a.extents.place(r.bytes, r.alignment, a.zone_of(r.bytes));
  }
  heap_.note_peaks(heap_.live() + bytes);
  return block;
}

// Allocates within the limit and the quota. CUDA guarantees less alignment than drivers provide: an
// address that is not page-aligned is freed, and the allocation repeated with room for alignment.
result<arena::chunk> chunk_source::allocate_chunk(std::size_t bytes) {
  const context_guard guard(heap_.device.driver(), heap_.device.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  const std::size_t most = heap_.limit;
  for (std::size_t room = 0;; room = heap_.page_bytes) {
    const std::size_t all = bytes + room;
    if (chunk_bytes_ + all > most) {
      return make_error(errc::out_of_memory, allocate_op,
                        "the limit of the allocator would be exceeded", all, most,
                        error_unit::bytes);
    }
    STILLMAP_ASSIGN_OR_RETURN(address_space::fallback_record prepared,
                              address_space::prepare_fallback());
    if (heap_.options.quota != nullptr) {
      const outside_scopes callback;
      STILLMAP_RETURN_IF_ERROR(heap_.options.quota->reserve(all));
    }
    const auto at = heap_.device.driver().allocate(all);
    if (!at) {
      release_grant(all);
      return tl::unexpected<error>(at.error());
    }
    const device_address begin(round_up(at->value(), heap_.page_bytes));
    if (room != 0 || begin == *at) {
      const virtual_range allocated{*at, all};
      heap_.device.space().add_fallback(allocated, std::move(prepared));
      chunk_bytes_ += all;
      return arena::chunk{{begin, bytes}, allocated};
    }
    if (const status s = heap_.device.driver().free(*at); !s) {
      report_background_error(s.error());
      return tl::unexpected<error>(s.error());
    }
    release_grant(all);
  }
}

// The host has no memory to enter a new chunk.
void chunk_source::undo_chunk(const arena::chunk &c) noexcept {
  const context_guard guard(heap_.device.driver(), heap_.device.context());
  heap_.device.space().remove_fallback(c.allocated);
  report_if_failed(guard.entered() ? heap_.device.driver().free(c.allocated.begin)
                                   : guard.entered());
  chunk_bytes_ -= c.allocated.bytes;
  release_grant(c.allocated.bytes);
}

// ---- freeing chunks ----

// Requires: it is set aside, and no queued work uses it. Failure: nothing changed.
status chunk_source::free_chunk(arena &a, const arena::chunk &c) {
  // Removed first: once freed, the addresses may be allocated again at once.
  heap_.addresses.remove(c.range);
  address_space::fallback_record removed = heap_.device.space().remove_fallback(c.allocated);
  const status s = heap_.device.driver().free(c.allocated.begin);
  if (!s) {
    heap_.device.space().add_fallback(c.allocated, std::move(removed));
    heap_.addresses.add(c.range, &a);
    return s;
  }
  chunk_bytes_ -= c.allocated.bytes;
  heap_.counters.released += c.range.bytes / heap_.page_bytes;
  heap_.observers.pages_unmapped(a, c.range);
  release_grant(c.allocated.bytes);
  return {};
}

// Frees at least `bytes` of unused chunks where there are as many: first those of idle streams, and
// if `wait`, those of others. Returns the bytes freed.
std::size_t chunk_source::release_chunks(const char *op, std::size_t bytes, bool wait,
                                         status &outcome) {
  if (status s = streams_.check_no_capture(op); !s) {
    outcome = s;
    return 0;
  }
  const context_guard guard(heap_.device.driver(), heap_.device.context());
  if (!guard.entered()) {
    outcome = guard.entered();
    return 0;
  }
  std::size_t given = 0;
  std::vector<arena *> busy;
  for (const auto &a : heap_.arenas) {
    if (given >= bytes) return given;
    {
      const lock_guard lock(a->lock);
      if (a->unused_chunk_bytes() == 0) continue;
    }
    if (streams_.is_idle(*a)) {
      given += release_chunks_of(op, *a, bytes - given, outcome);
    } else {
      busy.push_back(a.get());
    }
  }
  for (arena *const a : busy) {
    if (!wait || given >= bytes) break;
    given += release_chunks_of(op, *a, bytes - given, outcome);
  }
  return given;
}

std::size_t chunk_source::release_chunks_of(const char *op, arena &a, std::size_t bytes,
                                            status &outcome) {
  std::vector<arena::chunk> going;
  {
    const lock_guard lock(a.lock);
    going = a.take_chunks(bytes);
  }
  if (going.empty()) return 0;
  // cuMemFree waits for some streams only. The last use of every freed block is queued already, so
  // that an event recorded now is behind all of them.
  const status idle = with_host_memory(op, [&]() STILLMAP_REQUIRES(growth) -> status {
    STILLMAP_ASSIGN_OR_RETURN(fence after, streams_.fence_after(a));
    if (const auto past = streams_.has_passed(after, true); !past)
      return tl::unexpected(past.error());
    return {};
  });
  std::size_t given = 0;
  for (const arena::chunk &c : going) {
    const status gone = idle ? free_chunk(a, c) : idle;
    const lock_guard lock(a.lock);
    if (gone) {
      a.remove(c);
      given += c.allocated.bytes;
    } else {
      a.put_back(c);
      outcome = gone;
    }
  }
  return given;
}

result<release_report> chunk_source::trim(const char *op, std::size_t keep) {
  reclaimer_.reclaim(waiting_for::destroyed_streams);
  std::vector<arena *> giving;
  std::size_t unused = 0;
  for (const auto &a : heap_.arenas) {
    giving.push_back(a.get());
    const lock_guard lock(a->lock);
    unused += a->unused_chunk_bytes();
  }
  std::size_t given = 0;
  if (unused > keep) {
    status outcome;
    given = release_chunks(op, unused - keep, true, outcome);
    if (!outcome) return tl::unexpected<error>(outcome.error());
  }
  return report_release(heap_, given, giving);
}

void chunk_source::release_all() noexcept {
  if (chunk_bytes_ == 0) return;
  const relaxed_capture_mode relaxed(heap_.device.driver());
  report_if_failed(relaxed.entered());
  report_if_failed(streams_.wait_for_device());
  const context_guard guard(heap_.device.driver(), heap_.device.context());
  for (const auto &a : heap_.arenas) {
    a->lock.assume_held();  // no other thread uses the allocator any more
    for (const arena::chunk &c : a->chunks) {
      const status s = guard.entered() ? free_chunk(*a, c) : guard.entered();
      if (s) continue;
      report_background_error(s.error());
      heap_.device.space().remove_fallback(c.allocated);  // there is no later attempt
      release_grant(c.allocated.bytes);
    }
  }
}

void chunk_source::release_grant(std::size_t bytes) const noexcept {
  if (heap_.options.quota == nullptr) return;
  const outside_scopes callback;
  report_if_failed(heap_.options.quota->release(bytes));
}

}  // namespace stillmap
