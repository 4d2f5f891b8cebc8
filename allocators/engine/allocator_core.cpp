#include "stillmap/allocators/engine/allocator_core.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "stillmap/allocators/engine/block_report.h"
#include "stillmap/allocators/engine/chunk_source.h"
#include "stillmap/allocators/engine/heap_report.h"
#include "stillmap/allocators/engine/page_source.h"
#include "stillmap/allocators/engine/thread_stream.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

namespace stillmap {
namespace {

std::unique_ptr<memory_source> make_source(heap &h, stream_tracker &streams, reclaimer &r,
                                           std::shared_ptr<page_pool> pages,
                                           std::vector<access_grant> access) {
  if (pages == nullptr) return std::make_unique<chunk_source>(h, streams, r);
  return std::make_unique<page_source>(h, streams, r, std::move(pages), std::move(access));
}

}  // namespace

allocator_core::allocator_core(stillmap::device d, std::shared_ptr<page_pool> pages,
                               std::vector<access_grant> access, caching_allocator_options options,
                               std::shared_ptr<trace_recorder> recorder)
    : heap_(std::move(d), pages != nullptr ? pages->page_bytes() : address_directory::unit,
            pages == nullptr, std::move(options), std::move(recorder)),
      source_(make_source(heap_, streams_, reclaimer_, std::move(pages), std::move(access))) {}

allocator_core::~allocator_core() {
  const operation_scope scope("caching_allocator::~caching_allocator");
  const growth_lock growing(heap_.growth_mutex);
  source_->release_all();
}

// ---- requests ----

result<void *> allocator_core::allocate_refused(std::size_t bytes, stream_ref s,
                                                const allocate_options &options,
                                                arena &refused) noexcept {
  bool searched = false;
  {
    const lock_guard lock(refused.lock(), std::adopt_lock);
    searched = refused.service_locked().stream == s && refused.searches_before_reclaim();
    if (searched) {
      auto block = with_host_memory(
          "caching_allocator::allocate", [&]() STILLMAP_REQUIRES(refused.lock()) -> result<void *> {
            return refused.allocate_not_reused(request_for(bytes, allocation_granule));
          });
      if (!block || *block != nullptr) return block;
    }
  }
  return allocate_slow(bytes, s, options, searched);
}

result<void *> allocator_core::allocate_slow(std::size_t bytes, stream_ref s,
                                             const allocate_options &options,
                                             bool searched) noexcept {
  return with_host_memory("caching_allocator::allocate",
                          [&] { return serve(bytes, s, options, searched); });
}

// `searched`: the arena of the stream has no memory for it.
result<void *> allocator_core::serve(std::size_t bytes, stream_ref named,
                                     const allocate_options &options, bool searched) {
  if (bytes == 0) return nullptr;
  if (heap_.in_child()) return forked_error();
  if (!std::has_single_bit(options.alignment)) {
    return make_error(errc::invalid_argument, "the alignment is not a power of two",
                      options.alignment, 0, error_unit::bytes);
  }
  if (options.alignment > allocate_options::largest_alignment) {
    return make_error(errc::invalid_argument, "the alignment is too large", options.alignment,
                      allocate_options::largest_alignment, error_unit::bytes);
  }
  if (bytes > largest_request) {
    return make_error(errc::out_of_memory, "the request is larger than the device's memory", bytes,
                      heap_.device.total_memory().bytes(), error_unit::bytes);
  }
  const stream_ref s = thread_stream::key_of(named);
  const block_request r = request_for(bytes, options.alignment);
  result<void *> block = nullptr;
  arena *const a = heap_.streams.of(s);
  bool pending = false;
  if (a != nullptr) {
    const lock_guard lock(a->lock());
    pending = a->blocks().counters().pending_free != 0;
    if (a->service_locked().stream == s && !searched && a->searches_before_reclaim())
      block = a->allocate(r);
  }
  if (*block == nullptr) block = growth_.grow(s, r, pending);
  if (block && options.zero) {
    STILLMAP_RETURN_IF_ERROR(zero(*block, bytes, named));
  }
  return block;
}

// Only a stream that was not passed to record_use needs host memory.
status allocator_core::free_slow(void *block, std::optional<stream_ref> last_used_on) noexcept {
  const operation_scope scope("caching_allocator::free");
  if (heap_.in_child()) return forked_error();
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  arena *const a = heap_.addresses.at(address);
  free_outcome outcome = free_outcome::not_ours;
  if (a != nullptr) {
    pending_block *pending = nullptr;
    const status begun = with_host_memory([&]() -> status {
      if (last_used_on) last_used_on = thread_stream::key_of(*last_used_on);
      const lock_guard lock(a->lock());
      if (!last_used_on || a->service_locked().serves(*last_used_on) ||
          a->record_use(address, *last_used_on)) {
        outcome = a->blocks().free(address);
      }
      if (outcome == free_outcome::needs_event) pending = &a->blocks().defer_free(address);
      return {};
    });
    if (!begun) return begun;
    if (pending != nullptr) {
      streams_.record_uses(*pending);
      const lock_guard lock(a->lock());
      a->blocks().uses.queue.push_back(*pending);
    }
  }
  if (outcome == free_outcome::not_ours) {
    return make_error(errc::invalid_argument,
                      "no block begins at this address, or it was freed already", address, 0,
                      error_unit::address);
  }
  return {};
}

status allocator_core::record_use(void *block, stream_ref s) {
  if (block == nullptr) return {};
  if (heap_.in_child()) return forked_error();
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  if (arena *const a = heap_.addresses.at(address)) {
    const stream_ref key = thread_stream::key_of(s);
    bool recorded = false;
    {
      const lock_guard lock(a->lock());
      recorded = a->record_use(address, key);
    }
    if (recorded) {
      heap_.observers.used(block, s);
      return {};
    }
  }
  return make_error(errc::invalid_argument,
                    "no block begins at this address, or it was freed already", address, 0,
                    error_unit::address);
}

// Failure: frees the block.
status allocator_core::zero(void *block, std::size_t bytes, stream_ref s) {
  const context_guard guard(heap_.device.driver(), heap_.device.context());
  status done = guard.entered();
  if (done) {
    const device_address at(reinterpret_cast<std::uintptr_t>(block));
    done = heap_.device.driver().set_bytes_async(at, 0, bytes, s.get());
  }
  if (!done) [[maybe_unused]]
    const status freed = free_slow(block, std::nullopt);
  return done;
}

// ---- requests while they are observed ----

result<void *> allocator_core::allocate_notified(std::size_t bytes, stream_ref s,
                                                 const allocate_options &options) {
  heap_observers &observers = heap_.observers;
  if (observers.history.holds_requests() && bytes != 0 && !heap_.in_child()) {
    return refuse_suspended();
  }
  const call_stack stack = observers.history.capture();
  const auto block = allocate_slow(bytes, s, options);
  if (!block && is_device_short(block.error())) observers.failed(block.error(), bytes, s, stack);
  if (!block || *block == nullptr) return block;
  observers.allocated(this, heap_.addresses.at(reinterpret_cast<std::uintptr_t>(*block)), *block,
                      bytes, s, stack);
  return block;
}

// Told of first: once the block is free, another thread may get its address.
status allocator_core::free_notified(void *block, std::optional<stream_ref> last_used_on) {
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  arena *const a = heap_.in_child() ? nullptr : heap_.addresses.at(address);
  if (a == nullptr) return free_slow(block, last_used_on);
  if (last_used_on) {  // all that can fail comes before the records
    const status used = with_host_memory("caching_allocator::free", [&]() -> status {
      const stream_ref key = thread_stream::key_of(*last_used_on);
      const lock_guard lock(a->lock());
      a->record_use(address, key);
      return {};
    });
    if (!used) return used;
  }
  const call_stack stack = heap_.observers.history.capture();
  heap_.observers.free_requested(*a, block, last_used_on, stack);
  return free_slow(block, last_used_on);
}

result<void *> allocator_core::refuse_suspended() const noexcept {
  return with_host_memory("caching_allocator::allocate", [&]() -> result<void *> {
    const auto gone = [&](const block_record &b) {
      return b.tag == heap_.options.tag && b.released_bytes != 0;
    };
    const std::vector<block_record> blocks = heap_.device.space().blocks();
    const bool lost = std::any_of(blocks.begin(), blocks.end(), gone);
    const error e =
        make_error(errc::busy,
                   lost ? "memory of the allocator was forgotten, or sent away, and cannot come "
                          "back; make a new allocator"
                        : "memory of the allocator is suspended; resume its tag first")
            .value();
    return tl::unexpected(e.about("tag " + heap_.options.tag));
  });
}

// ---- streams, and memory that returns to the device ----

status allocator_core::forget_stream(stream_ref named) {
  if (heap_.in_child()) return forked_error();
  const stream_ref s = thread_stream::key_of(named);
  const growth_lock growing(heap_.growth_mutex);
  if (const std::uint64_t pool = pools_.pool_of(s); pool != 0) {
    return make_error(errc::busy, "the stream allocates to a private pool", pool);
  }
  if (!streams_.knows(s) && !pools_.has_uses_on(s)) return {};
  const relaxed_capture_mode relaxed(heap_.device.driver());
  STILLMAP_RETURN_IF_ERROR(relaxed.entered());
  const auto last_work = fence::after(heap_.device, named);
  if (!last_work && says_destroyed(last_work.error())) {
    streams_.end_destroyed();
    return {};
  }
  if (!last_work) return tl::unexpected<error>(last_work.error());
  pools_.forget(s, streams_.forget(s, *last_work), *last_work);
  return {};
}

result<release_report> allocator_core::trim(std::size_t keep) {
  if (heap_.in_child()) return forked_error();
  const growth_lock growing(heap_.growth_mutex);
  // What is suspended has no pages, and its places are needed when it comes back.
  if (heap_.observers.history.holds_requests()) {
    std::vector<arena *> keeping;
    for (const auto &a : heap_.arenas) keeping.push_back(a.get());
    return report_release(heap_, *source_, 0, keeping);
  }
  const relaxed_capture_mode relaxed(heap_.device.driver());
  STILLMAP_RETURN_IF_ERROR(relaxed.entered());
  streams_.end_destroyed();
  pools_.reclaim(waiting_for::destroyed_streams);
  return source_->trim(keep);
}

std::uint64_t allocator_core::give_back(std::uint64_t bytes) noexcept {
  const auto done = with_host_memory("caching_allocator::trim", [&]() -> result<std::uint64_t> {
    if (heap_.in_child()) return forked_error();
    std::size_t unused = 0;
    {
      const growth_lock growing(heap_.growth_mutex);
      if (steps_ != 0) return reclaim_later;
      heap_.flush_all();
      for (const auto &a : heap_.arenas) unused += source_->releasable_bytes(*a);
    }
    STILLMAP_ASSIGN_OR_RETURN(const release_report given,
                              trim(unused - std::min<std::uint64_t>(unused, bytes)));
    heap_.device.space().collect(true);
    return given.released;
  });
  // A stream that captures keeps its pages.
  if (!done && !done.error().is(errc::busy)) report_background_error(done.error());
  return done.value_or(0);
}

// While it waits others may take its free memory: then what it got is not enough, and it waits again.
status allocator_core::begin_step(std::size_t bytes) {
  memory_quota *const quota = heap_.options.quota.get();
  if (heap_.in_child()) return forked_error();
  if (quota == nullptr) return {};
  // Chunks do not merge: what is unused in them may not fit.
  if (heap_.in_chunks) STILLMAP_RETURN_IF_ERROR(trim(0));
  bool has_room = false;  // each step has one, if only of no bytes
  for (std::size_t got = 0;; has_room = true) {
    std::size_t wanted = 0;
    {
      const growth_lock growing(heap_.growth_mutex);
      const std::size_t committed = heap_.committed();
      const std::size_t free = heap_.in_chunks ? 0 : committed - std::min(committed, heap_.live());
      wanted = round_up(bytes - std::min(bytes, free), heap_.page_bytes);
      if (has_room && wanted <= got) {
        ++steps_;
        return {};
      }
    }
    if (has_room) quota->end_room();
    const status room = quota->make_room(wanted);
    if (!room) return room.error().is(errc::not_supported) ? status() : room;
    got = wanted;
  }
}

void allocator_core::end_step() noexcept {
  memory_quota *const quota = heap_.options.quota.get();
  if (quota == nullptr || steps_ == 0) return;
  --steps_;
  quota->end_room();
  const auto given = quota->retry_reclaim();
  if (!given) report_background_error(given.error());
}

// ---- what it knows ----

result<std::size_t> allocator_core::usable_size(const void *block) const {
  if (in_child()) return forked_error();
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  if (const arena *const a = heap_.addresses.at(address)) {
    const lock_guard lock(a->lock());
    if (const std::size_t bytes = a->blocks().usable_size(address); bytes != 0) return bytes;
  }
  return make_error(errc::invalid_argument,
                    "no block begins at this address, or it was freed already", address, 0,
                    error_unit::address);
}

result<virtual_range> allocator_core::find_block(const void *inside) const {
  if (in_child()) return forked_error();
  const auto address = reinterpret_cast<std::uintptr_t>(inside);
  if (const arena *const a = heap_.addresses.at(address)) {
    const lock_guard lock(a->lock());
    if (const auto block = block_around(a->blocks(), address)) return *block;
  }
  return make_error(errc::invalid_argument,
                    "no allocated block of this allocator is at the address", address, 0,
                    error_unit::address);
}

caching_allocator_stats allocator_core::stats() const {
  if (in_child()) return {};
  return stats_of(heap_, source_->created_ahead());
}

}  // namespace stillmap
