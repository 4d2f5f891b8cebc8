#include "stillmap/allocators/caching_allocator.h"

#include <algorithm>
#include <bit>

#include "stillmap/allocators/engine/allocator_core.h"
#include "stillmap/allocators/engine/heap_report.h"
#include "stillmap/allocators/trace/internal/trace_recorder.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/memory_limits.h"

namespace stillmap {

namespace {

status check_page(std::size_t bytes, std::size_t granularity) {
  constexpr std::size_t largest = caching_allocator_options::largest_page;
  const auto no = [&](const char *why, std::size_t bound) {
    return make_error(errc::invalid_argument, why, bytes, bound, error_unit::bytes);
  };
  if (bytes == 0) return {};
  if (!std::has_single_bit(bytes)) return no("page_bytes is not a power of two", largest);
  if (bytes < granularity) return no("page_bytes is below the device's granularity", granularity);
  if (bytes > largest) return no("page_bytes is above the largest page", largest);
  return {};
}

}  // namespace

caching_allocator::caching_allocator(std::unique_ptr<allocator_core> c) : core_(std::move(c)) {
  const auto &quota = core_->shared_heap().options.quota;
  if (quota == nullptr) return;
  reclaimer_ = quota->add_reclaimer(
      reclaim_kind::cached,
      [core = core_.get()](std::uint64_t bytes) { return core->give_back(bytes); });
}
caching_allocator::~caching_allocator() {
  // In a forked child nothing can be released, and threads that do not exist here may hold locks.
  if (core_->in_child()) {
    static_cast<void>(reclaimer_.release());
    static_cast<void>(core_.release());
  } else {
    reclaimer_.reset();
    core_->close_trace();
  }
}

result<std::unique_ptr<caching_allocator>> caching_allocator::create(
    const stillmap::device &d, caching_allocator_options options) {
  return with_host_memory("caching_allocator::create", [&] { return make(d, std::move(options)); });
}

result<std::unique_ptr<caching_allocator>> caching_allocator::make(
    const stillmap::device &d, caching_allocator_options options) {
  std::vector<access_grant> access{{on_device(d.ordinal()), access_mode::read_write}};
  for (const int peer : options.peer_devices) {
    const auto &peers = d.capabilities().peers;
    if (peer != d.ordinal() && std::find(peers.begin(), peers.end(), peer) == peers.end()) {
      return make_error(errc::invalid_argument,
                        "a device in peer_devices cannot access this device's memory",
                        static_cast<std::uint64_t>(peer));
    }
    const access_grant grant{on_device(peer), access_mode::read_write};
    if (std::find(access.begin(), access.end(), grant) == access.end()) access.push_back(grant);
  }
  if (!d.capabilities().vmm && access.size() > 1) {
    return make_error(errc::not_supported,
                      "peer_devices needs a device that can map pages, and this one cannot");
  }
  STILLMAP_RETURN_IF_ERROR(check_page(options.page_bytes, d.capabilities().page_bytes));
  // Before the driver enforces them: by then it has evicted memory, or ended a process.
  STILLMAP_ASSIGN_OR_RETURN(const memory_limits system, memory_limits_of(d));
  options.limit = static_cast<std::size_t>(std::min<std::uint64_t>(options.limit, system.hard));
  options.soft_limit =
      static_cast<std::size_t>(std::min<std::uint64_t>(options.soft_limit, system.soft));
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
status caching_allocator::begin_step(std::size_t bytes) {
  return with_host_memory("caching_allocator::begin_step",
                          [&] { return core_->begin_step(bytes); });
}
void caching_allocator::end_step() noexcept {
  core_->end_step();
}
void caching_allocator::mark_iteration() {
  if (!core_->in_child()) core_->shared_heap().observers.iteration_began();
}
result<private_pool> caching_allocator::create_pool() {
  return with_host_memory("caching_allocator::create_pool",
                          [&] { return core_->pools().create(); });
}
status caching_allocator::retain_pool(private_pool p) {
  const operation_scope scope("caching_allocator::retain_pool");
  return core_->pools().retain(p);
}
status caching_allocator::release_pool(private_pool p, const std::vector<stream_ref> &replayed_on) {
  return with_host_memory("caching_allocator::release_pool",
                          [&] { return core_->pools().release(p, replayed_on); });
}
status caching_allocator::begin_allocate_to_pool(private_pool p, stream_ref s) {
  return with_host_memory("caching_allocator::begin_allocate_to_pool",
                          [&] { return core_->pools().begin_allocate(p, s); });
}
status caching_allocator::end_allocate_to_pool(private_pool p, stream_ref s) {
  return with_host_memory("caching_allocator::end_allocate_to_pool",
                          [&] { return core_->pools().end_allocate(p, s); });
}
result<release_report> caching_allocator::empty_cache() {
  return with_host_memory("caching_allocator::empty_cache", [&] { return core_->trim(0); });
}
result<release_report> caching_allocator::trim(std::size_t keep) {
  return with_host_memory("caching_allocator::trim", [&] { return core_->trim(keep); });
}
std::size_t caching_allocator::limit() const {
  return core_->shared_heap().limit;
}
void caching_allocator::set_limit(std::size_t bytes) {
  core_->shared_heap().limit = bytes;
}
void caching_allocator::set_soft_limit(std::size_t bytes) {
  core_->shared_heap().soft_limit = bytes;
}
bool caching_allocator::owns(const void *address) const {
  return core_->owns(address);
}
result<std::size_t> caching_allocator::usable_size(const void *block) const {
  const operation_scope scope("caching_allocator::usable_size");
  return core_->usable_size(block);
}
result<virtual_range> caching_allocator::find_block(const void *address) const {
  const operation_scope scope("caching_allocator::find_block");
  return core_->find_block(address);
}
caching_allocator_stats caching_allocator::stats() const {
  return core_->stats();
}
void caching_allocator::reset_peaks() {
  if (!core_->in_child()) stillmap::reset_peaks(core_->shared_heap());
}
result<heap_map> caching_allocator::map() const {
  const operation_scope scope("caching_allocator::map");
  if (core_->in_child()) return forked_error();
  return with_host_memory([&]() -> result<heap_map> { return map_of(core_->shared_heap()); });
}
status caching_allocator::record_history(history_options options) {
  const operation_scope scope("caching_allocator::record_history");
  if (core_->in_child()) return forked_error();
  return core_->shared_heap().observers.history.start(options);
}
void caching_allocator::stop_history() {
  if (!core_->in_child()) core_->shared_heap().observers.history.stop();
}
void caching_allocator::forget_history() {
  if (!core_->in_child()) core_->shared_heap().observers.history.forget();
}
bool caching_allocator::records_history() const {
  return !core_->in_child() && core_->shared_heap().observers.history.recording();
}
result<allocation_history> caching_allocator::history() const {
  const operation_scope scope("caching_allocator::history");
  if (core_->in_child()) return forked_error();
  return with_host_memory([&] { return core_->shared_heap().observers.history.copy(); });
}
const stillmap::device &caching_allocator::device() const {
  return core_->shared_heap().device;
}

}  // namespace stillmap
