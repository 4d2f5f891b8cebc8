// Growth and release by cuMemAlloc chunks, where the device cannot map pages. A chunk keeps its
// address, belongs to one stream, and is freed as a whole.
// docs/allocator_growth.md#where-pages-cannot-be-mapped
#include <algorithm>

#include "stillmap/allocators/engine/allocator_core.h"
#include "stillmap/allocators/engine/policy.h"
#include "stillmap/allocators/engine/thread_stream.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {
namespace {

constexpr const char *allocate_op = "caching_allocator::allocate";

}  // namespace

// ---- allocating chunks ----

// Allocates a chunk for the request, and returns the block in it. Beyond effort::ordinary, unused
// chunks are freed to make room.
result<extent *> allocator_core::extend_by_chunk(arena &a, const block_request &r, effort level) {
  const bool quiet = capturing(a);
  const auto bytes = static_cast<std::size_t>(r.bytes);
  const std::size_t slack = r.alignment > page() ? static_cast<std::size_t>(r.alignment) : 0;
  const std::size_t least = round_up(bytes + slack, page()),
                    generous = std::max(least, policy::shared_chunk_bytes(bytes));
  const std::size_t soft = soft_limit, most = limit;
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
    addresses_.expect(got->range);
    const lock_guard lock(a.lock);
    a.add_chunk(*got, a.zone_of(r.bytes));
    addresses_.add(got->range, &a);
  } catch (const std::bad_alloc &) {
    undo_chunk(*got);
    throw;
  }
  notify_chunk(a, got->range);
  created_ += got->range.bytes / page();
  extent *block = nullptr;
  {
    const lock_guard lock(a.lock);
    block = a.extents.place(r.bytes, r.alignment, a.zone_of(r.bytes));
  }
  note_peaks(live() + bytes);
  return block;
}

// Allocates within the limit and the quota. CUDA guarantees less alignment than drivers provide: an
// address that is not page-aligned is freed, and the allocation repeated with room for alignment.
result<arena::chunk> allocator_core::allocate_chunk(std::size_t bytes) {
  const context_guard guard(device_.driver(), device_.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  const std::size_t most = limit;
  for (std::size_t room = 0;; room = page()) {
    const std::size_t all = bytes + room;
    if (chunk_bytes_ + all > most) {
      return make_error(errc::out_of_memory, allocate_op,
                        "the limit of the allocator would be exceeded", all, most,
                        error_unit::bytes);
    }
    STILLMAP_ASSIGN_OR_RETURN(address_space::fallback_record prepared,
                              address_space::prepare_fallback());
    if (options_.quota != nullptr) {
      const outside_scopes callback;
      STILLMAP_RETURN_IF_ERROR(options_.quota->reserve(all));
    }
    const auto at = device_.driver().allocate(all);
    if (!at) {
      release_grant(all);
      return tl::unexpected<error>(at.error());
    }
    const device_address begin(round_up(at->value(), page()));
    if (room != 0 || begin == *at) {
      const virtual_range allocated{*at, all};
      device_.space().add_fallback(allocated, std::move(prepared));
      chunk_bytes_ += all;
      return arena::chunk{{begin, bytes}, allocated};
    }
    if (const status s = device_.driver().free(*at); !s) {
      report_background_error(s.error());
      return tl::unexpected<error>(s.error());
    }
    release_grant(all);
  }
}

// The host has no memory to enter a new chunk.
void allocator_core::undo_chunk(const arena::chunk &c) noexcept {
  const context_guard guard(device_.driver(), device_.context());
  device_.space().remove_fallback(c.allocated);
  report_if_failed(guard.entered() ? device_.driver().free(c.allocated.begin) : guard.entered());
  chunk_bytes_ -= c.allocated.bytes;
  release_grant(c.allocated.bytes);
}

// ---- freeing chunks ----

// Requires: it is set aside, and no queued work uses it. Failure: nothing changed.
status allocator_core::free_chunk(arena &a, const arena::chunk &c) {
  // Removed first: once freed, the addresses may be allocated again at once.
  addresses_.remove(c.range);
  address_space::fallback_record removed = device_.space().remove_fallback(c.allocated);
  const status s = device_.driver().free(c.allocated.begin);
  if (!s) {
    device_.space().add_fallback(c.allocated, std::move(removed));
    addresses_.add(c.range, &a);
    return s;
  }
  chunk_bytes_ -= c.allocated.bytes;
  released_ += c.range.bytes / page();
  notify_unmapped(a, c.range);
  release_grant(c.allocated.bytes);
  return {};
}

// Frees at least `bytes` of unused chunks where there are as many: first those of idle streams, and
// if `wait`, those of others. Returns the bytes freed.
std::size_t allocator_core::release_chunks(const char *op, std::size_t bytes, bool wait,
                                           status &outcome) {
  if (status s = check_no_capture(op); !s) {
    outcome = s;
    return 0;
  }
  const context_guard guard(device_.driver(), device_.context());
  if (!guard.entered()) {
    outcome = guard.entered();
    return 0;
  }
  std::size_t given = 0;
  std::vector<arena *> busy;
  for (const auto &a : arenas_) {
    if (given >= bytes) return given;
    {
      const lock_guard lock(a->lock);
      if (a->unused_chunk_bytes() == 0) continue;
    }
    if (is_idle(*a)) {
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

std::size_t allocator_core::release_chunks_of(const char *op, arena &a, std::size_t bytes,
                                              status &outcome) {
  std::vector<arena::chunk> going;
  {
    const lock_guard lock(a.lock);
    going = a.take_chunks(bytes);
  }
  if (going.empty()) return 0;
  // cuMemFree waits for some streams only. The last use of every freed block is queued already, so
  // that an event recorded now is behind all of them.
  const status idle = with_host_memory(op, [&]() STILLMAP_REQUIRES(growth_mutex_) -> status {
    STILLMAP_ASSIGN_OR_RETURN(fence after, fence_after(a));
    if (const auto past = has_passed(after, true); !past) return tl::unexpected(past.error());
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

result<std::size_t> allocator_core::trim_chunks(const char *op, std::size_t keep) {
  reclaim(waiting_for::destroyed_streams);
  std::size_t unused = 0;
  for (const auto &a : arenas_) {
    const lock_guard lock(a->lock);
    unused += a->unused_chunk_bytes();
  }
  if (unused <= keep) return std::size_t{0};
  status outcome;
  const std::size_t given = release_chunks(op, unused - keep, true, outcome);
  if (!outcome) return tl::unexpected<error>(outcome.error());
  return given;
}

// For the destructor. Requires: the device is idle.
void allocator_core::free_all_chunks() noexcept {
  const context_guard guard(device_.driver(), device_.context());
  for (const auto &a : arenas_) {
    a->lock.assume_held();  // no other thread uses the allocator any more
    for (const arena::chunk &c : a->chunks) {
      const status s = guard.entered() ? free_chunk(*a, c) : guard.entered();
      if (s) continue;
      report_background_error(s.error());
      device_.space().remove_fallback(c.allocated);  // there is no later attempt
      release_grant(c.allocated.bytes);
    }
  }
}

void allocator_core::release_grant(std::size_t bytes) const noexcept {
  if (options_.quota == nullptr) return;
  const outside_scopes callback;
  report_if_failed(options_.quota->release(bytes));
}

// Freeing memory during a capture could wait for work that never runs. The query of the default
// stream also covers streams of other owners, unless they are non-blocking.
status allocator_core::check_no_capture(const char *op) const {
  const context_guard guard(device_.driver(), device_.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  const auto ask = [&](stream_ref s) -> status {
    const auto answer = device_.driver().stream_capturing(s.get());
    if (!answer && !answer.error().is(errc::not_supported)) {
      return tl::unexpected<error>(answer.error());
    }
    if (answer && !*answer) return {};
    return make_error(errc::busy, op, "memory cannot be released while a stream captures a graph");
  };
  if (status s = ask({}); !s) return s;
  for (const auto &a : arenas_) {
    const arena::facts now = a->now();
    if (!now.ended) STILLMAP_RETURN_IF_ERROR(ask(thread_stream::handle_of(now.stream)));
  }
  return {};
}

}  // namespace stillmap
