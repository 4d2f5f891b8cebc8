// Where the device cannot map pages, memory comes by cuMemAlloc: in chunks, which stay where they
// are, belong to one stream, and go back whole. docs/allocator.md#where-pages-cannot-be-mapped
#include <algorithm>

#include "stillmap/allocators/internal/allocator_core.h"

namespace stillmap {
namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;

bool is_out_of_memory(const error &e) {
  return e.is(errc::out_of_memory);
}

// Small requests share a chunk, so that the driver is asked less often than they are.
std::size_t shared_by(std::size_t bytes, std::size_t least) {
  const std::size_t shared = bytes <= MiB ? 2 * MiB : bytes < 10 * MiB ? 20 * MiB : 0;
  return std::max(least, shared);
}

}  // namespace

// ---- getting them ----

// A chunk that the request fits in, the block in it. Beyond ordinary effort, what is unused of
// others goes back for it.
result<extent *> allocator_core::extend_by_chunk(arena &a, const block_request &r, effort level) {
  const bool quiet = capturing(a.stream);
  const auto bytes = static_cast<std::size_t>(r.bytes);
  const std::size_t slack = r.alignment > page() ? static_cast<std::size_t>(r.alignment) : 0;
  const std::size_t least = round_up(bytes + slack, page()), generous = shared_by(bytes, least);
  const std::size_t soft = soft_limit, most = limit;
  status kept;  // what could not go stays, and is no reason to fail
  if (!quiet && chunk_bytes_ + least > soft) {
    release_chunks(chunk_bytes_ + least - soft, false, kept);
  }
  auto got = allocate_chunk(chunk_bytes_ + generous > soft ? least : generous);
  if (!got && is_out_of_memory(got.error()) && generous != least) got = allocate_chunk(least);
  if (level != effort::ordinary && !quiet) {
    // Ever more, since what is free on the device need not be in one piece.
    std::size_t wanted = chunk_bytes_ + least > most ? chunk_bytes_ + least - most : least;
    for (; !got && is_out_of_memory(got.error()); wanted *= 2) {
      if (release_chunks(wanted, true, kept) == 0) break;
      got = allocate_chunk(least);
    }
  }
  if (!got) {
    if (is_out_of_memory(got.error())) pack_all();
    return tl::unexpected<error>(got.error());
  }
  if (chunk_bytes_ > ceiling() - ceiling() / 4) pack_all();

  directory_.add_chunk(got->range, &a);
  notify_chunk(a, got->range);
  created_ += got->range.bytes / page();
  extent *block = nullptr;
  {
    const std::lock_guard lock(a.lock);
    a.last_growth = a.counted().allocations;
    a.add_chunk(*got);
    block = a.extents.place(r.bytes, r.alignment, extent_map::search::thorough);
  }
  live_peak_ = std::max(live_peak_.load(), live() + bytes);
  committed_peak_ = std::max(committed_peak_.load(), committed());
  return block;
}

// Within the limit and the quota. CUDA promises less alignment than drivers give: what does not
// begin at a page is asked for again, with room to.
result<arena::chunk> allocator_core::allocate_chunk(std::size_t bytes) {
  const context_guard guard(device_.driver(), device_.context());
  if (!guard.entered()) return tl::unexpected<error>(guard.entered().error());
  const std::size_t most = limit;
  for (std::size_t room = 0;; room = page()) {
    const std::size_t all = bytes + room;
    if (chunk_bytes_ + all > most) {
      return make_error(errc::out_of_memory, "caching_allocator::allocate",
                        "over the limit of the allocator", all, most);
    }
    if (options_.quota != nullptr) {
      if (status s = options_.quota->reserve(all); !s) return tl::unexpected<error>(s.error());
    }
    const auto at = device_.driver().allocate(all);
    if (!at) {
      release_grant(all);
      return tl::unexpected<error>(at.error());
    }
    const device_address begin(round_up(at->value(), page()));
    if (room != 0 || begin == *at) {
      const virtual_range allocated{*at, all};
      device_.space().enter_fallback(allocated);
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

// ---- giving them back ----

// Requires: it is in no books, and nothing queued touches it. On failure all is as it was.
status allocator_core::free_chunk(arena &a, const arena::chunk &c) {
  // Nobody may be told that it is there any more: another may be given the addresses at once.
  directory_.remove_chunk(c.range);
  device_.space().leave_fallback(c.allocated);
  const status s = device_.driver().free(c.allocated.begin);
  if (!s) {
    device_.space().enter_fallback(c.allocated);
    directory_.add_chunk(c.range, &a);
    return s;
  }
  chunk_bytes_ -= c.allocated.bytes;
  released_ += c.range.bytes / page();
  notify_unmapped(a, c.range);
  release_grant(c.allocated.bytes);
  return {};
}

// At least `bytes` of unused chunks, if there are as many; those of idle streams first, and only
// those unless the host may wait. Returns what went.
std::size_t allocator_core::release_chunks(std::size_t bytes, bool wait, status &outcome) {
  if (status s = check_no_capture(); !s) {
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
      const std::lock_guard lock(a->lock);
      if (a->unused_chunk_bytes() == 0) continue;
    }
    if (is_idle(*a)) {
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

std::size_t allocator_core::release_chunks_of(arena &a, std::size_t bytes, status &outcome) {
  std::vector<arena::chunk> going;
  {
    const std::lock_guard lock(a.lock);
    going = a.take_chunks(bytes);
  }
  if (going.empty()) return 0;
  // cuMemFree would wait for some streams and not for others. Whoever frees a block has queued its
  // last use by then, so that no such work comes after this.
  status idle;
  if (auto after = fence::after(device_, a.stream); after) {
    if (const auto past = has_passed(*after, true); !past) idle = tl::unexpected(past.error());
  } else {
    idle = tl::unexpected<error>(after.error());
  }
  std::size_t given = 0;
  for (const arena::chunk &c : going) {
    const status gone = idle ? free_chunk(a, c) : idle;
    if (gone) {
      given += c.allocated.bytes;
      continue;
    }
    outcome = gone;
    const std::lock_guard lock(a.lock);
    a.add_chunk(c);
  }
  return given;
}

result<physical_size> allocator_core::trim_chunks(std::size_t keep) {
  reclaim(false);
  std::size_t unused = 0;
  for (const auto &a : arenas_) {
    const std::lock_guard lock(a->lock);
    unused += a->unused_chunk_bytes();
  }
  if (unused <= keep) return physical_size(0);
  status outcome;
  const std::size_t given = release_chunks(unused - keep, true, outcome);
  if (!outcome) return tl::unexpected<error>(outcome.error());
  return physical_size(given);
}

// At the end, when the device has been waited for.
void allocator_core::free_all_chunks() noexcept {
  const context_guard guard(device_.driver(), device_.context());
  for (const auto &a : arenas_) {
    for (const arena::chunk &c : a->chunks) {
      const status s = guard.entered() ? free_chunk(*a, c) : guard.entered();
      if (s) continue;
      report_background_error(s.error());
      device_.space().leave_fallback(c.allocated);  // nobody will ever try again
      release_grant(c.allocated.bytes);
    }
  }
}

void allocator_core::release_grant(std::size_t bytes) const noexcept {
  if (options_.quota == nullptr) return;
  if (const status s = options_.quota->release(bytes); !s) report_background_error(s.error());
}

// Giving memory back in the middle of a capture could wait for what never runs. Asking the default
// stream also tells of streams that are not ours, as long as they are of the blocking kind.
status allocator_core::check_no_capture() const {
  const context_guard guard(device_.driver(), device_.context());
  if (!guard.entered()) return guard.entered();
  const auto ask = [&](stream_ref s) -> status {
    const auto answer = device_.driver().stream_capturing(s.get());
    if (!answer && !answer.error().is(errc::not_supported)) {
      return tl::unexpected<error>(answer.error());
    }
    if (answer && !*answer) return {};
    return make_error(errc::busy, "caching_allocator::empty_cache",
                      "nothing can be given back while a stream captures a graph");
  };
  if (status s = ask({}); !s) return s;
  for (const auto &a : arenas_) {
    if (status s = ask(a->stream); !s) return s;
  }
  return {};
}

}  // namespace stillmap
