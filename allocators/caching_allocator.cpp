#include "stillmap/allocators/caching_allocator.h"

#include <algorithm>
#include <bit>

#include "stillmap/allocators/engine/allocator_core.h"
#include "stillmap/allocators/engine/thread_stream.h"
#include "stillmap/allocators/trace/internal/trace_recorder.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {

namespace {

constexpr const char *creating = "caching_allocator::create";
constexpr const char *allocating = "caching_allocator::allocate";

// An upper bound on any device's memory, in bytes; rounding up cannot overflow below it.
constexpr std::size_t largest_request = std::size_t{1} << 46;

block_request request_for(std::size_t bytes, std::size_t alignment) {
  block_request r;
  r.bytes = (bytes + allocation_granule - 1) & ~(allocation_granule - 1);
  r.slack = static_cast<std::uint16_t>(r.bytes - bytes);
  r.alignment = std::max(alignment, allocation_granule);
  return r;
}

status check_page(std::size_t bytes, std::size_t granularity) {
  constexpr std::size_t largest = caching_allocator_options::largest_page;
  const auto no = [&](const char *why, std::size_t bound) {
    return make_error(errc::invalid_argument, creating, why, bytes, bound, error_unit::bytes);
  };
  if (bytes == 0) return {};
  if (!std::has_single_bit(bytes)) return no("page_bytes is not a power of two", largest);
  if (bytes < granularity) return no("page_bytes is below the device's granularity", granularity);
  if (bytes > largest) return no("page_bytes is above the largest page", largest);
  return {};
}

// Success. `return {}` would clear all bytes of the status before it sets one.
struct success final : status {
  success() noexcept {}
};

}  // namespace

// ---- the fast path: no driver call, no host memory, and inlined into the interface below ----

[[gnu::always_inline]] inline result<void *> allocator_core::allocate(
    std::size_t bytes, stream_ref s, const allocate_options &options) {
  if (history.enabled()) [[unlikely]]
    return allocate_notified(bytes, s, options);
  if (bytes - 1 < largest_request && options.alignment == allocation_granule && !options.zero &&
      !watch_.in_child()) [[likely]] {
    if (arena *const a = streams_.of(s)) [[likely]] {
      const block_request r = request_for(bytes, allocation_granule);
      a->lock.lock();
      void *const block = a->stream == s ? a->reuse(r) : nullptr;
      if (block == nullptr) [[unlikely]]
        return allocate_refused(bytes, s, options, *a);
      a->lock.unlock();
      return block;
    }
  }
  return allocate_slow(bytes, s, options);
}

[[gnu::always_inline]] inline status allocator_core::free(void *block,
                                                          std::optional<stream_ref> last_used_on) {
  if (block == nullptr) return success();
  if (history.enabled()) [[unlikely]]
    return free_notified(block, last_used_on);
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  if (arena *const a = addresses_.at(address)) [[likely]] {
    if (!watch_.in_child()) [[likely]] {
      arena::free_outcome outcome = arena::free_outcome::needs_event;
      {
        const lock_guard lock(a->lock);
        if (!last_used_on || a->serves(*last_used_on)) outcome = a->free(address);
      }
      if (outcome == arena::free_outcome::done) [[likely]]
        return success();
    }
  }
  return free_slow(block, last_used_on);
}

// ---- the interface ----

caching_allocator::caching_allocator(std::unique_ptr<allocator_core> c) : core_(std::move(c)) {}
caching_allocator::~caching_allocator() {
  // In a forked child nothing can be released, and threads that do not exist here may hold locks.
  if (core_->in_child()) {
    static_cast<void>(core_.release());
  } else {
    core_->close_trace();
  }
}

result<std::unique_ptr<caching_allocator>> caching_allocator::create(
    const stillmap::device &d, caching_allocator_options options) {
  return with_host_memory(creating, [&] { return make(d, std::move(options)); });
}

result<std::unique_ptr<caching_allocator>> caching_allocator::make(
    const stillmap::device &d, caching_allocator_options options) {
  constexpr const char *op = creating;
  std::vector<access_grant> access{{on_device(d.ordinal()), access_mode::read_write}};
  for (const int peer : options.peer_devices) {
    const auto &peers = d.capabilities().peers;
    if (peer != d.ordinal() && std::find(peers.begin(), peers.end(), peer) == peers.end()) {
      return make_error(errc::invalid_argument, op,
                        "a device in peer_devices cannot access this device's memory",
                        static_cast<std::uint64_t>(peer));
    }
    const access_grant grant{on_device(peer), access_mode::read_write};
    if (std::find(access.begin(), access.end(), grant) == access.end()) access.push_back(grant);
  }
  if (!d.capabilities().vmm && access.size() > 1) {
    return make_error(errc::not_supported, op,
                      "peer_devices needs a device that can map pages, and this one cannot");
  }
  STILLMAP_RETURN_IF_ERROR(check_page(options.page_bytes, d.capabilities().page_bytes));
  // Free pages stay mapped in the allocator; a page that it releases returns to the device at once.
  std::shared_ptr<page_pool> pages;
  if (d.capabilities().vmm) {
    page_pool_options pool;
    pool.page_bytes = options.page_bytes;
    pool.keep_free = 0;
    pool.quota = options.quota;
    pool.exportable = options.exportable;
    STILLMAP_ASSIGN_OR_RETURN(pages, page_pool::create(d, pool));
  }
  std::shared_ptr<trace_recorder> recorder;
  if (options.record_to.empty()) {
    if (options.record_from_environment) recorder = trace_recorder::from_environment();
  } else {
    STILLMAP_ASSIGN_OR_RETURN(recorder, trace_recorder::open(options.record_to));
  }
  return std::unique_ptr<caching_allocator>(new caching_allocator(std::make_unique<allocator_core>(
      d, std::move(pages), std::move(access), std::move(options), std::move(recorder))));
}

// Host memory that runs out becomes an error here, or on the slow paths of allocate and free.
result<void *> caching_allocator::allocate(std::size_t bytes, stream_ref s,
                                           allocate_options options) {
  return core_->allocate(bytes, s, options);
}
status caching_allocator::free(void *block) {
  return core_->free(block, std::nullopt);
}
status caching_allocator::free(void *block, stream_ref last_used_on) {
  return core_->free(block, last_used_on);
}
status caching_allocator::record_use(void *block, stream_ref s) {
  return with_host_memory("caching_allocator::record_use",
                          [&] { return core_->record_use(block, s); });
}
status caching_allocator::forget_stream(stream_ref s) {
  return with_host_memory("caching_allocator::forget_stream",
                          [&] { return core_->forget_stream(s); });
}
void caching_allocator::mark_iteration() {
  core_->mark_iteration();
}
result<private_pool> caching_allocator::create_pool() {
  return with_host_memory("caching_allocator::create_pool", [&] { return core_->create_pool(); });
}
status caching_allocator::retain_pool(private_pool p) {
  return core_->retain_pool(p);
}
status caching_allocator::release_pool(private_pool p, const std::vector<stream_ref> &replayed_on) {
  return with_host_memory("caching_allocator::release_pool",
                          [&] { return core_->release_pool(p, replayed_on); });
}
status caching_allocator::begin_allocate_to_pool(private_pool p, stream_ref s) {
  return with_host_memory("caching_allocator::begin_allocate_to_pool",
                          [&] { return core_->begin_allocate_to_pool(p, s); });
}
status caching_allocator::end_allocate_to_pool(private_pool p, stream_ref s) {
  return with_host_memory("caching_allocator::end_allocate_to_pool",
                          [&] { return core_->end_allocate_to_pool(p, s); });
}
result<release_report> caching_allocator::empty_cache() {
  constexpr const char *op = "caching_allocator::empty_cache";
  return with_host_memory(op, [&] { return core_->trim(op, 0); });
}
result<release_report> caching_allocator::trim(std::size_t keep) {
  constexpr const char *op = "caching_allocator::trim";
  return with_host_memory(op, [&] { return core_->trim(op, keep); });
}
std::size_t caching_allocator::limit() const {
  return core_->limit;
}
void caching_allocator::set_limit(std::size_t bytes) {
  core_->limit = bytes;
}
void caching_allocator::set_soft_limit(std::size_t bytes) {
  core_->soft_limit = bytes;
}
bool caching_allocator::owns(const void *address) const {
  return core_->owns(address);
}
result<std::size_t> caching_allocator::usable_size(const void *block) const {
  return core_->usable_size(block);
}
caching_allocator_stats caching_allocator::stats() const {
  return core_->stats();
}
void caching_allocator::reset_peaks() {
  core_->reset_peaks();
}
result<heap_map> caching_allocator::map() const {
  return with_host_memory("caching_allocator::map", [&] { return core_->map(); });
}
status caching_allocator::record_history(history_options options) {
  return core_->history.start(options);
}
void caching_allocator::stop_history() {
  core_->history.stop();
}
void caching_allocator::forget_history() {
  core_->history.forget();
}
bool caching_allocator::records_history() const {
  return core_->history.recording();
}
result<allocation_history> caching_allocator::history() const {
  if (core_->in_child()) return forked_error("caching_allocator::history");
  return with_host_memory("caching_allocator::history", [&] { return core_->history.copy(); });
}
const stillmap::device &caching_allocator::device() const {
  return core_->device();
}

// ---- the allocator ----

allocator_core::allocator_core(stillmap::device d, std::shared_ptr<page_pool> pages,
                               std::vector<access_grant> access, caching_allocator_options options,
                               std::shared_ptr<trace_recorder> recorder)
    : history(options.observer),
      limit(options.limit),
      soft_limit(options.soft_limit),
      device_(std::move(d)),
      pages_(std::move(pages)),
      page_bytes_(pages_ != nullptr ? pages_->page_bytes() : address_directory::unit),
      access_(std::move(access)),
      options_(std::move(options)),
      recorder_(std::move(recorder)),
      next_hint_(options_.hint) {
  if (recorder_) history.notify_requests();
}

allocator_core::~allocator_core() {
  hold_->detach();
  unmap_everything();
}

// The functions for what the fast path does not serve are not inlined: they would cost it registers.
[[gnu::noinline]] result<void *> allocator_core::allocate_refused(std::size_t bytes, stream_ref s,
                                                                  const allocate_options &options,
                                                                  arena &refused) noexcept {
  bool searched = false;
  {
    const lock_guard lock(refused.lock, std::adopt_lock);
    searched = refused.stream == s && refused.searches_before_reclaim();
    if (searched) {
      auto block =
          with_host_memory(allocating, [&]() STILLMAP_REQUIRES(refused.lock) -> result<void *> {
            return refused.allocate_not_reused(request_for(bytes, allocation_granule));
          });
      if (!block || *block != nullptr) return block;
    }
  }
  return allocate_slow(bytes, s, options, searched);
}

[[gnu::noinline]] result<void *> allocator_core::allocate_slow(std::size_t bytes, stream_ref s,
                                                               const allocate_options &options,
                                                               bool searched) noexcept {
  return with_host_memory(allocating, [&] { return serve(bytes, s, options, searched); });
}

// `searched`: the arena of the stream has no memory for it.
[[gnu::noinline]] result<void *> allocator_core::serve(std::size_t bytes, stream_ref named,
                                                       const allocate_options &options,
                                                       bool searched) {
  constexpr const char *op = allocating;
  if (bytes == 0) return nullptr;
  if (watch_.in_child()) return forked_error(op);
  if (!std::has_single_bit(options.alignment)) {
    return make_error(errc::invalid_argument, op, "the alignment is not a power of two",
                      options.alignment, 0, error_unit::bytes);
  }
  if (options.alignment > allocate_options::largest_alignment) {
    return make_error(errc::invalid_argument, op, "the alignment is too large", options.alignment,
                      allocate_options::largest_alignment, error_unit::bytes);
  }
  if (bytes > largest_request) {
    return make_error(errc::out_of_memory, op, "the request is larger than the device's memory",
                      bytes, device_.total_memory().bytes(), error_unit::bytes);
  }
  const stream_ref s = thread_stream::key_of(named);
  const block_request r = request_for(bytes, options.alignment);
  result<void *> block = nullptr;
  arena *const a = streams_.of(s);
  bool pending = false;
  if (a != nullptr) {
    const lock_guard lock(a->lock);
    pending = a->counted().pending_free != 0;
    if (a->stream == s && !searched && a->searches_before_reclaim()) block = a->allocate(r);
  }
  if (*block == nullptr) block = grow(s, r, pending);
  if (block && options.zero) {
    STILLMAP_RETURN_IF_ERROR(zero(*block, bytes, named));
  }
  return block;
}

// Only a stream that was not passed to record_use needs host memory.
status allocator_core::free_slow(void *block, std::optional<stream_ref> last_used_on) noexcept {
  if (watch_.in_child()) return forked_error("caching_allocator::free");
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  arena *const a = addresses_.at(address);
  arena::free_outcome outcome = arena::free_outcome::not_ours;
  if (a != nullptr) {
    pending_block *pending = nullptr;
    const status begun = with_host_memory("caching_allocator::free", [&]() -> status {
      if (last_used_on) last_used_on = thread_stream::key_of(*last_used_on);
      const lock_guard lock(a->lock);
      if (!last_used_on || a->serves(*last_used_on) || a->record_use(address, *last_used_on)) {
        outcome = a->free(address);
      }
      if (outcome == arena::free_outcome::needs_event) pending = &a->defer_free(address);
      return {};
    });
    if (!begun) return begun;
    if (pending != nullptr) {
      record_uses(*pending);
      const lock_guard lock(a->lock);
      a->deferred.push_back(*pending);
    }
  }
  if (outcome == arena::free_outcome::not_ours) {
    return make_error(errc::invalid_argument, "caching_allocator::free",
                      "no block begins at this address, or it was freed already", address, 0,
                      error_unit::address);
  }
  return {};
}

status allocator_core::record_use(void *block, stream_ref s) {
  if (block == nullptr) return {};
  if (watch_.in_child()) return forked_error("caching_allocator::record_use");
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  if (arena *const a = addresses_.at(address)) {
    const lock_guard lock(a->lock);
    if (a->record_use(address, thread_stream::key_of(s))) {
      if (recorder_) recorder_->used(block, device_.ordinal(), s);
      return {};
    }
  }
  return make_error(errc::invalid_argument, "caching_allocator::record_use",
                    "no block begins at this address, or it was freed already", address, 0,
                    error_unit::address);
}

// ---- the slow path ----

// Failure: frees the block.
status allocator_core::zero(void *block, std::size_t bytes, stream_ref s) {
  const context_guard guard(device_.driver(), device_.context());
  status done = guard.entered();
  if (done) {
    const device_address at(reinterpret_cast<std::uintptr_t>(block));
    done = device_.driver().set_bytes_async(at, 0, bytes, s.get());
  }
  if (!done) [[maybe_unused]]
    const status freed = free_slow(block, std::nullopt);
  return done;
}

}  // namespace stillmap
