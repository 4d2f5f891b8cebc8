#include "stillmap/allocators/engine/chunk_source.h"

#include <algorithm>
#include <new>

#include "stillmap/allocators/engine/heap_report.h"
#include "stillmap/allocators/engine/policy.h"
#include "stillmap/allocators/internal/room.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

namespace stillmap {

// ---- allocating chunks ----

// Beyond effort::ordinary, unused chunks are freed to make room.
result<extent *> chunk_source::extend(arena &a, const block_request &r, effort level) {
  const bool quiet = streams_.capturing(a);
  missing_ = 0;
  const auto bytes = static_cast<std::size_t>(r.bytes);
  const std::size_t slack =
      r.alignment > heap_.page_bytes ? static_cast<std::size_t>(r.alignment) : 0;
  const std::size_t least = round_up(bytes + slack, heap_.page_bytes),
                    generous = std::max(least, policy::shared_chunk_bytes(bytes));
  const std::size_t soft = heap_.soft_limit, most = heap_.limit;
  status kept;  // chunks that cannot be freed stay: not a failure
  if (!quiet && chunk_bytes_ + least > soft) {
    release_chunks(chunk_bytes_ + least - soft, false, kept);
  }
  auto got = allocate_chunk(chunk_bytes_ + generous > soft ? least : generous);
  if (!got && is_device_short(got.error()) && generous != least) got = allocate_chunk(least);
  if (level != effort::ordinary && !quiet) {
    // Doubles the amount, because free device memory need not be contiguous.
    std::size_t wanted = chunk_bytes_ + least > most ? chunk_bytes_ + least - most : least;
    for (; !got && is_device_short(got.error()); wanted *= 2) {
      if (release_chunks(wanted, true, kept) == 0) break;
      got = allocate_chunk(least);
    }
  }
  if (!got) {
    // At the limit of the allocator others can give nothing.
    if (is_device_short(got.error()) && chunk_bytes_ + least <= most) missing_ = least;
    return tl::unexpected<error>(got.error());
  }

  extent *block = nullptr;
  try {
    heap_.addresses.expect(got->range);
    const lock_guard lock(a.lock());
    add(a, *got, a.zone_of(r.bytes));
    heap_.addresses.add(got->range, &a);
    // Before another thread may take the chunk. Needs no host memory: extent_set::add.
    block = a.extents().place(r.bytes, r.alignment, a.zone_of(r.bytes));
  } catch (const std::bad_alloc &) {
    undo_chunk(*got);
    throw;
  }
  heap_.observers.addresses_reserved(a, got->range);  // a chunk is addresses and memory at once
  heap_.observers.pages_mapped(a, got->range);
  heap_.counters.created += got->range.bytes / heap_.page_bytes;
  heap_.note_peaks(heap_.live() + bytes);
  return block;
}

// May run out, and then changes nothing.
void chunk_source::add(arena &a, const chunk &c, address_zone zone) {
  std::vector<chunk> &chunks = chunks_of(a);
  make_room(chunks);
  a.extents().add(c.range, true, zone);
  chunks.push_back(c);
}

// Allocates within the limit and the quota. CUDA guarantees less alignment than drivers provide: an
// address that is not page-aligned is freed, and the allocation repeated with room for alignment.
result<chunk_source::chunk> chunk_source::allocate_chunk(std::size_t bytes) {
  const context_guard guard(heap_.device.driver(), heap_.device.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  const std::size_t most = heap_.limit;
  for (std::size_t room = 0;; room = heap_.page_bytes) {
    const std::size_t all = bytes + room;
    if (chunk_bytes_ + all > most) {
      return make_error(errc::out_of_memory, "the limit of the allocator would be exceeded", all,
                        most, error_unit::bytes);
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
      return chunk{{begin, bytes}, allocated};
    }
    if (const status s = heap_.device.driver().free(*at); !s) {
      report_background_error(s.error());
      return tl::unexpected<error>(s.error());
    }
    release_grant(all);
  }
}

// The host has no memory to enter a new chunk.
void chunk_source::undo_chunk(const chunk &c) noexcept {
  const context_guard guard(heap_.device.driver(), heap_.device.context());
  heap_.device.space().remove_fallback(c.allocated);
  report_if_failed(guard.entered() ? heap_.device.driver().free(c.allocated.begin)
                                   : guard.entered());
  chunk_bytes_ -= c.allocated.bytes;
  release_grant(c.allocated.bytes);
}

// ---- freeing chunks ----

// Requires: it is set aside, and no queued work uses it. Failure: nothing changed.
status chunk_source::free_chunk(arena &a, const chunk &c) {
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

// Those of a private pool are used: its graphs replay on them.
bool chunk_source::is_unused(arena &a, const chunk &c) {
  if (a.service_locked().pinned) return false;
  const extent &first = *a.extents().at(c.range.begin.value());
  return first.state == extent_state::free && first.range() == c.range;
}

std::size_t chunk_source::releasable_bytes(arena &a) {
  const lock_guard lock(a.lock());
  a.blocks().flush();
  std::size_t sum = 0;
  for (const chunk &c : chunks_of(a)) sum += is_unused(a, c) ? c.allocated.bytes : 0;
  return sum;
}

// Prefers the smallest chunk that suffices, otherwise takes the largest, and so on.
std::vector<chunk_source::chunk> chunk_source::take(arena &a, std::size_t bytes) {
  const lock_guard lock(a.lock());
  a.blocks().flush();
  std::vector<chunk> there, out;
  for (const chunk &c : chunks_of(a)) {
    if (is_unused(a, c)) there.push_back(c);
  }
  std::sort(there.begin(), there.end(), [](const chunk &x, const chunk &y) {
    return x.allocated.bytes < y.allocated.bytes ||
           (x.allocated.bytes == y.allocated.bytes && x.range.begin > y.range.begin);
  });
  for (std::size_t got = 0; got < bytes && !there.empty(); got += out.back().allocated.bytes) {
    auto one = std::find_if(there.begin(), there.end(),
                            [&](const chunk &c) { return c.allocated.bytes >= bytes - got; });
    if (one == there.end()) --one;
    out.push_back(*one);
    there.erase(one);
  }
  for (const chunk &c : out) a.extents().set_aside(c.range);
  return out;
}

// Frees at least `bytes` of unused chunks where there are as many: first those of idle streams, and
// if `wait`, those of others. Returns the bytes freed.
std::size_t chunk_source::release_chunks(std::size_t bytes, bool wait, status &outcome) {
  if (status s = streams_.check_no_capture(); !s) {
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
    if (releasable_bytes(*a) == 0) continue;
    if (streams_.is_idle(*a)) {
      given += release_chunks_of(*a, bytes - given, outcome);
    } else {
      busy.push_back(a.get());
    }
  }
  for (arena *const a : busy) {
    if (!wait || given >= bytes) break;
    given += release_chunks_of(*a, bytes - given, outcome);
  }
  return given;
}

std::size_t chunk_source::release_chunks_of(arena &a, std::size_t bytes, status &outcome) {
  const std::vector<chunk> going = take(a, bytes);
  if (going.empty()) return 0;
  // cuMemFree waits for some streams only. The last use of every freed block is queued already, so
  // that an event recorded now is behind all of them.
  const status idle = with_host_memory([&]() STILLMAP_REQUIRES(growth) -> status {
    STILLMAP_ASSIGN_OR_RETURN(fence after, streams_.fence_after(a));
    if (const auto past = streams_.has_passed(after, true); !past)
      return tl::unexpected(past.error());
    return {};
  });
  std::size_t given = 0;
  for (const chunk &c : going) {
    const status gone = idle ? free_chunk(a, c) : idle;
    const lock_guard lock(a.lock());
    extent *const memory = a.extents().at(c.range.begin.value());
    if (gone) {
      a.extents().unmapped(memory);
      a.extents().remove(c.range);
      std::erase_if(chunks_of(a), [&](const chunk &other) { return other.range == c.range; });
      given += c.allocated.bytes;
    } else {
      a.extents().put_back(memory);
      outcome = gone;
    }
  }
  return given;
}

result<release_report> chunk_source::trim(std::size_t keep) {
  reclaimer_.reclaim(waiting_for::destroyed_streams);
  std::vector<arena *> giving;
  std::size_t unused = 0;
  for (const auto &a : heap_.arenas) {
    giving.push_back(a.get());
    unused += releasable_bytes(*a);
  }
  std::size_t given = 0;
  if (unused > keep) {
    status outcome;
    given = release_chunks(unused - keep, true, outcome);
    if (!outcome) return tl::unexpected<error>(outcome.error());
  }
  return report_release(heap_, *this, given, giving);
}

void chunk_source::release_all() noexcept {
  if (chunk_bytes_ == 0) return;
  const relaxed_capture_mode relaxed(heap_.device.driver());
  report_if_failed(relaxed.entered());
  report_if_failed(streams_.wait_for_device());
  const context_guard guard(heap_.device.driver(), heap_.device.context());
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    for (const chunk &c : chunks_[i]) {
      const status s = guard.entered() ? free_chunk(*heap_.arenas[i], c) : guard.entered();
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
