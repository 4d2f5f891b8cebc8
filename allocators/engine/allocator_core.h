// The implementation of caching_allocator: the arenas, and how pages enter and leave them.
// Internal.
//
// Lock order: growth_mutex_ > arenas_mutex_ > arena::lock (several in the order of arenas_) > the locks
// of the history and the trace. growth_mutex_ > the ledger's and the page pool's locks. One thread at a
// time grows the heap, so growth_mutex_ is held across driver calls. An arena's lock never is: threads
// whose requests fit do not wait for the driver.
//
// Host memory: what runs out of it is std::bad_alloc in here, and an error at the public functions. It
// changes nothing. docs/allocator_growth.md#failures
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "stillmap/allocators/allocator_types.h"
#include "stillmap/allocators/heap_map.h"
#include "stillmap/allocators/engine/address_directory.h"
#include "stillmap/allocators/engine/arena.h"
#include "stillmap/allocators/engine/arena_locks.h"
#include "stillmap/allocators/engine/arena_returns.h"
#include "stillmap/allocators/internal/fork_watch.h"
#include "stillmap/allocators/internal/history_ring.h"
#include "stillmap/allocators/engine/private_pools.h"
#include "stillmap/allocators/engine/stream_directory.h"
#include "stillmap/allocators/engine/stream_progress.h"
#include "stillmap/allocators/engine/suspension_hold.h"
#include "stillmap/allocators/trace/internal/trace_recorder.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/remap.h"

namespace stillmap {

inline tl::unexpected<error> forked_error(const char *op) {
  return make_error(errc::not_supported, op,
                    "the process was forked: CUDA does not work in a child");
}

// Whether memory of the device is short, or of a limit or quota, so that other memory may serve.
inline bool is_device_short(const error &e) {
  return e.is(errc::out_of_memory) && e.code != std::errc::not_enough_memory;
}

class allocator_core {
 public:
  allocator_core(stillmap::device d, std::shared_ptr<page_pool> pages,
                 std::vector<access_grant> access, caching_allocator_options options,
                 std::shared_ptr<trace_recorder> recorder);
  ~allocator_core();

  // caching_allocator.cpp
  result<void *> allocate(std::size_t bytes, stream_ref s, const allocate_options &options);
  status free(void *block, std::optional<stream_ref> last_used_on);
  status record_use(void *block, stream_ref s);

  // allocator_streams.cpp
  status forget_stream(stream_ref named);

  // allocator_returns.cpp
  result<release_report> trim(const char *op, std::size_t keep);

  // allocator_pools.cpp
  result<private_pool> create_pool();
  status retain_pool(private_pool p);
  status release_pool(private_pool p, const std::vector<stream_ref> &replayed_on);
  status begin_allocate_to_pool(private_pool p, stream_ref s);
  status end_allocate_to_pool(private_pool p, stream_ref s);

  // allocator_history.cpp
  void mark_iteration();
  void close_trace();  // the allocator ends: its live blocks end in the trace too
  mutable history_ring history;

  // allocator_report.cpp
  caching_allocator_stats stats() const;
  void reset_peaks();
  result<heap_map> map() const;
  result<std::size_t> usable_size(const void *block) const;
  bool owns(const void *address) const {
    return addresses_.at(reinterpret_cast<std::uintptr_t>(address)) != nullptr;
  }

  const stillmap::device &device() const { return device_; }
  bool in_child() const { return watch_.in_child(); }
  std::atomic<std::size_t> limit, soft_limit;

 private:
  // Which pages a growth may use; each level includes the ones before it.
  enum class effort {
    ordinary,  // free pages of idle streams, and new pages within the limits
    all,       // every free page; the stream waits for the stream that used it last
    waiting,   // and where a stream cannot wait, the host does
  };
  // Whole free pages taken out of one arena.
  struct taken_pages {
    arena *from = nullptr;
    std::vector<extent *> extents{};
    fence idle{};
    bool leaves_allocator = false;  // the pages return to the device
  };
  // The pages found for one growth.
  struct page_supply {
    std::vector<taken_pages> moved;
    std::size_t moved_pages = 0;
    std::vector<page_ptr> created;
    // The host waits until moved pages are idle, instead of the stream: a graph cannot wait for
    // work outside of it, and is launched on any stream.
    bool ordered_by_host = false;
  };

  // Unlocks the arena whose fast path, which serves alignment to the granule alone, refused the request.
  result<void *> allocate_refused(std::size_t bytes, stream_ref s, const allocate_options &options,
                                  arena &refused) noexcept STILLMAP_RELEASE(refused.lock);
  result<void *> allocate_slow(std::size_t bytes, stream_ref s, const allocate_options &options,
                               bool searched = false) noexcept;
  result<void *> serve(std::size_t bytes, stream_ref named, const allocate_options &options,
                       bool searched);
  status free_slow(void *block, std::optional<stream_ref> last_used_on) noexcept;
  status zero(void *block, std::size_t bytes, stream_ref s);

  // Which work the host waits for. No event can be recorded on a stream that was destroyed: one wait for
  // the device ends all uses there.
  enum class waiting_for { nothing, destroyed_streams, everything };

  // allocator_streams.cpp
  arena &arena_for(stream_ref s) STILLMAP_REQUIRES(growth_mutex_);
  arena &make_arena(stream_ref s) STILLMAP_REQUIRES(growth_mutex_);
  bool adopt(arena &a, stream_ref s) STILLMAP_REQUIRES(growth_mutex_);
  void end(arena &a, fence last_work) noexcept STILLMAP_REQUIRES(growth_mutex_);
  void end_destroyed_streams() STILLMAP_REQUIRES(growth_mutex_);
  result<fence> fence_after(const arena &a) STILLMAP_REQUIRES(growth_mutex_);
  bool capturing(stream_ref s) const;
  bool capturing(const arena &a) const STILLMAP_EXCLUDES(a.lock);
  bool is_idle(arena &a) STILLMAP_REQUIRES(growth_mutex_);
  status record(stream_use &u) noexcept;
  void record_uses(pending_block &b) noexcept;
  result<bool> has_passed(fence &idle, bool wait);
  bool has_passed(stream_use &u, waiting_for wait) noexcept STILLMAP_REQUIRES(growth_mutex_);

  // allocator_history.cpp: requests while history is recorded, observed or traced.
  // Not inlined: history_ring::capture.
  [[gnu::noinline]] result<void *> allocate_notified(std::size_t bytes, stream_ref s,
                                                     const allocate_options &options);
  result<void *> refuse_suspended() const noexcept;
  [[gnu::noinline]] status free_notified(void *block, std::optional<stream_ref> last_used_on);
  // Each of these costs one load while nothing is recorded.
  void notify_failed(const error &e, std::size_t bytes, stream_ref s, const call_stack &stack);
  void notify_free_completed(const arena &a, std::uint64_t address) STILLMAP_REQUIRES(a.lock);
  // Requires: the taken extents have not been merged yet.
  void notify_grown(const arena &a, const extent_map::carved_extent &place,
                    const page_supply &supply) STILLMAP_REQUIRES(growth_mutex_);
  void notify_unmapped(const arena &a, const virtual_range &range) STILLMAP_EXCLUDES(a.lock);
  void notify_reserved(const arena &a, const virtual_range &range) STILLMAP_EXCLUDES(a.lock);
  void notify_chunk(const arena &a, const virtual_range &range) STILLMAP_EXCLUDES(a.lock);

  // Growth. What requires growth_mutex_ may run out of host memory. allocator_growth.cpp
  result<void *> grow(stream_ref s, const block_request &r, bool pending)
      STILLMAP_EXCLUDES(growth_mutex_);
  result<void *> grow_once(stream_ref s, const block_request &r, bool first, bool pending)
      STILLMAP_EXCLUDES(growth_mutex_);
  result<void *> find_memory(arena &a, const block_request &r, bool reclaimed)
      STILLMAP_REQUIRES(growth_mutex_);
  result<extent *> extend(arena &a, const block_request &r, effort level)
      STILLMAP_REQUIRES(growth_mutex_);
  result<extent *> extend_by_pages(arena &a, const block_request &r, effort level)
      STILLMAP_REQUIRES(growth_mutex_);
  std::size_t ceiling() const;
  void age_moved(arena &a) STILLMAP_REQUIRES(growth_mutex_);
  std::optional<extent_map::carved_extent> carve(arena &a, const block_request &r, effort level)
      STILLMAP_REQUIRES(growth_mutex_);
  status reserve_addresses(arena &a, std::size_t bytes, address_zone zone)
      STILLMAP_REQUIRES(growth_mutex_);
  void enter(arena &a, std::shared_ptr<address_block> block, address_zone zone)
      STILLMAP_REQUIRES(growth_mutex_);
  status collect_pages(arena &a, std::size_t pages, effort level, page_supply &supply)
      STILLMAP_REQUIRES(growth_mutex_);
  void note_peaks(std::size_t live) STILLMAP_REQUIRES(growth_mutex_);
  // allocator_pages.cpp
  bool gives_pages(arena &a) const;
  std::size_t take_free_pages(arena &victim, std::size_t pages, page_supply &supply)
      STILLMAP_REQUIRES(growth_mutex_);
  status create(arena &a, std::size_t pages, page_supply &supply) STILLMAP_REQUIRES(growth_mutex_);
  void create_ahead(std::size_t committed) STILLMAP_REQUIRES(growth_mutex_);
  status order_after_last_use(arena &a, page_supply &supply) STILLMAP_REQUIRES(growth_mutex_);
  void expect_release(arena &a, page_supply &supply) STILLMAP_REQUIRES(growth_mutex_);
  status map(const extent_map::carved_extent &place, page_supply &supply)
      STILLMAP_REQUIRES(growth_mutex_);
  void put_back(page_supply &supply) noexcept STILLMAP_REQUIRES(growth_mutex_);
  void release_old_mappings(arena &a, const extent_map::carved_extent &place, page_supply &supply)
      STILLMAP_REQUIRES(growth_mutex_);
  void give_up(const std::vector<extent *> &extents, const fence &idle)
      STILLMAP_REQUIRES(growth_mutex_);
  void drop_aliases_if_fragmented(arena &a) STILLMAP_REQUIRES(growth_mutex_);
  bool drop_aliases(arena &a) STILLMAP_REQUIRES(growth_mutex_);
  bool lends(const arena &a) const STILLMAP_REQUIRES(growth_mutex_);
  void note_memory_state(std::size_t peak, bool exhausted) STILLMAP_REQUIRES(growth_mutex_);
  void *allocate_at_lent(arena &a, const block_request &r) STILLMAP_REQUIRES(growth_mutex_);
  void return_lent(arena &a, const block_request &r) STILLMAP_REQUIRES(growth_mutex_);

  // allocator_chunks.cpp: memory from cuMemAlloc, where the device cannot map pages.
  bool in_chunks() const { return pages_ == nullptr; }
  result<extent *> extend_by_chunk(arena &a, const block_request &r, effort level)
      STILLMAP_REQUIRES(growth_mutex_);
  result<arena::chunk> allocate_chunk(std::size_t bytes) STILLMAP_REQUIRES(growth_mutex_);
  void undo_chunk(const arena::chunk &c) noexcept STILLMAP_REQUIRES(growth_mutex_);
  status free_chunk(arena &a, const arena::chunk &c) STILLMAP_REQUIRES(growth_mutex_);
  std::size_t release_chunks(const char *op, std::size_t bytes, bool wait, status &outcome)
      STILLMAP_REQUIRES(growth_mutex_);
  std::size_t release_chunks_of(const char *op, arena &a, std::size_t bytes, status &outcome)
      STILLMAP_REQUIRES(growth_mutex_);
  result<std::size_t> trim_chunks(const char *op, std::size_t keep)
      STILLMAP_REQUIRES(growth_mutex_);
  void free_all_chunks() noexcept STILLMAP_REQUIRES(growth_mutex_);
  void release_grant(std::size_t bytes) const noexcept;
  status check_no_capture(const char *op) const STILLMAP_REQUIRES(growth_mutex_);

  // allocator_pools.cpp
  result<private_pools::pool *> find_pool(const char *op, private_pool p)
      STILLMAP_REQUIRES(growth_mutex_);
  arena &pool_arena(private_pools::pool &p, stream_ref s) STILLMAP_REQUIRES(growth_mutex_);
  bool is_reusable(arena &a) STILLMAP_REQUIRES(growth_mutex_);
  void reclaim_pools(waiting_for wait) noexcept STILLMAP_REQUIRES(growth_mutex_);
  std::size_t pinned_free_bytes() const STILLMAP_REQUIRES(growth_mutex_);

  // allocator_returns.cpp
  void reclaim(waiting_for wait, const arena *but_pending_of = nullptr) noexcept
      STILLMAP_REQUIRES(growth_mutex_);
  void reclaim_pending(arena &a, waiting_for wait) noexcept STILLMAP_REQUIRES(growth_mutex_);
  void reclaim_unmapping(arena &a, bool wait) noexcept STILLMAP_REQUIRES(growth_mutex_);
  result<void *> allocate_after_reclaim(arena &a, const block_request &r)
      STILLMAP_REQUIRES(growth_mutex_);
  status retire(const char *op, arena &a, std::size_t pages, const std::vector<arena *> &aliased,
                std::size_t &bytes) STILLMAP_REQUIRES(growth_mutex_);
  void flush_all() STILLMAP_REQUIRES(growth_mutex_);
  void unmap_everything() noexcept;
  status wait_for_device() const;

  // allocator_report.cpp
  release_report report_release(std::size_t released, const std::vector<arena *> &giving)
      STILLMAP_REQUIRES(growth_mutex_);

  std::size_t moved_bytes() const STILLMAP_REQUIRES(growth_mutex_);
  std::size_t committed() const STILLMAP_REQUIRES(growth_mutex_);
  std::size_t live() const STILLMAP_REQUIRES(growth_mutex_);
  std::size_t page() const { return page_bytes_; }

  arena_returns &returns_of(const arena &a) STILLMAP_REQUIRES(growth_mutex_) {
    return returns_[a.id - 1];
  }
  // As arena_lock::assume_held, for growth_mutex_.
  void assume_growing() const STILLMAP_ASSERT_CAPABILITY(growth_mutex_) {}

  const fork_watch watch_;
  const stillmap::device device_;
  const std::shared_ptr<page_pool> pages_;  // nullptr: the device cannot map pages
  const std::size_t page_bytes_;
  const std::vector<access_grant> access_;
  const caching_allocator_options options_;
  const std::shared_ptr<trace_recorder> recorder_;  // nullptr: no trace is recorded
  // Changes under growth_mutex_.
  const std::shared_ptr<shared_pages> shared_ = std::make_shared<shared_pages>();
  const std::shared_ptr<suspension_hold> hold_ = std::make_shared<suspension_hold>(history);
  // Any thread looks up; they change under growth_mutex_.
  stream_directory streams_;
  address_directory addresses_;

  mutable mutex growth_mutex_;
  // For the next reservation.
  device_address next_hint_ STILLMAP_GUARDED_BY(growth_mutex_);
  std::size_t chunk_bytes_ STILLMAP_GUARDED_BY(growth_mutex_) = 0;  // bytes of all chunks
  arena_list arenas_ STILLMAP_GUARDED_BY(growth_mutex_);
  // Of arena i + 1. A deque: they stay where they are.
  std::deque<arena_returns> returns_ STILLMAP_GUARDED_BY(growth_mutex_);
  private_pools pools_ STILLMAP_GUARDED_BY(growth_mutex_);
  // New ones since end_destroyed_streams.
  std::size_t streams_since_search_ STILLMAP_GUARDED_BY(growth_mutex_) = 0;
  // Pools, other than pages_, that own pages of this allocator: they must outlive the pages.
  std::vector<std::shared_ptr<page_pool>> foreign_pools_ STILLMAP_GUARDED_BY(growth_mutex_);
  stream_progress progress_ STILLMAP_GUARDED_BY(growth_mutex_);
  // The ceiling when more pages than that were wanted last; 0: not since it was raised. And the bytes beyond
  // which the driver or a quota refused pages last.
  std::size_t exhausted_ceiling_ STILLMAP_GUARDED_BY(growth_mutex_) = 0;
  std::size_t refused_beyond_ STILLMAP_GUARDED_BY(growth_mutex_) = SIZE_MAX;

  // arenas_ again, for stats(), which does not wait for growth.
  mutable mutex arenas_mutex_;
  arena_list reported_arenas_ STILLMAP_GUARDED_BY(arenas_mutex_);

  std::atomic<std::uint64_t> recorded_uses_{0};  // see stream_use
  std::atomic<std::size_t> live_peak_{0};
  // Since reset_peaks().
  std::atomic<std::size_t> reported_live_peak_{0}, reported_committed_peak_{0};
  std::atomic<std::uint64_t> growths_{0}, created_{0}, moved_{0}, released_{0}, host_waits_{0},
      failed_{0};
};

}  // namespace stillmap
