// What is behind a caching_allocator: arenas, and how pages come to them and go. Internal.
// Lock order: growth_mutex_ > arena::lock (one at a time, except in stats()) ; the ledger's and the
// page pool's come below. growth_mutex_ is held across driver calls, since one thread at a time
// looks for memory; an arena's lock never is, so that the others go on.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/allocators/internal/arena.h"
#include "stillmap/allocators/internal/arena_directory.h"
#include "stillmap/allocators/internal/fork_watch.h"
#include "stillmap/allocators/internal/history_ring.h"
#include "stillmap/allocators/internal/private_pools.h"
#include "stillmap/allocators/trace/internal/trace_recorder.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/remap.h"

namespace stillmap {

inline tl::unexpected<error> not_in_a_child(const char *op) {
  return make_error(errc::not_supported, op, "the process was forked: CUDA does not work here");
}

class caching_allocator::core {
 public:
  core(stillmap::device d, std::shared_ptr<page_pool> pages, std::vector<access_grant> access,
       caching_allocator_options options, std::shared_ptr<trace_recorder> recorder);
  ~core();

  // caching_allocator.cpp
  result<void *> allocate(std::size_t bytes, stream_ref s, allocate_options how);
  status free(void *block, std::optional<stream_ref> last_used_on);
  status record_use(void *block, stream_ref s);

  // allocator_returns.cpp
  result<physical_size> give_back(std::size_t keep);

  // private_pools.cpp
  result<private_pool> create_pool();
  status retain_pool(private_pool p);
  status release_pool(private_pool p, const std::vector<stream_ref> &replayed_on);
  status begin_allocate_to_pool(private_pool p, stream_ref s);
  status end_allocate_to_pool(private_pool p, stream_ref s);

  // allocator_history.cpp
  void mark_iteration();
  void gone();  // no request comes any more
  mutable history_ring history;

  // allocator_report.cpp
  caching_allocator_stats stats() const;
  heap_map map() const;
  result<std::size_t> usable_size(const void *block) const;
  bool owns(const void *address) const {
    return directory_.at(reinterpret_cast<std::uintptr_t>(address)) != nullptr;
  }

  const stillmap::device &device() const { return device_; }
  bool in_child() const { return watch_.in_child(); }
  std::atomic<std::size_t> limit, soft_limit;

 private:
  // How far growing goes for its pages.
  enum class effort {
    ordinary,  // what is idle, and new pages within the limits
    all,       // and every free page there is: the stream waits for whoever used it
    waiting,   // and where no stream may wait, the host does
  };
  struct taken {
    arena *from;
    std::vector<segment *> segments;
    fence idle;
    bool for_good = false;  // out of the allocator
  };
  struct loot {
    std::vector<taken> moved;
    std::size_t moved_pages = 0;
    std::vector<page_ptr> created;
    // The host has seen that the pages are idle, not the stream waited: a graph cannot wait for
    // what is outside, and is launched on any stream.
    bool by_host = false;
  };

  result<void *> allocate_slow(std::size_t bytes, stream_ref s, const allocate_options &how);
  status free_with_care(void *block, std::optional<stream_ref> last_used_on);
  arena &arena_for(stream_ref s);
  arena &make_arena(stream_ref s);
  status zero(void *block, std::size_t bytes, stream_ref s);
  bool record(arena::other_use &u);

  // allocator_history.cpp: requests, while somebody is told of them
  result<void *> allocate_told(std::size_t bytes, stream_ref s, const allocate_options &how);
  status free_told(void *block, std::optional<stream_ref> last_used_on);
  // The rest; each costs one load where nothing is recorded.
  void tell_failed(const error &e, std::size_t bytes, stream_ref s, const call_stack &stack);
  void tell_finished(const arena &a, const arena::held_block &h);  // requires a.lock
  void tell_grown(const arena &a, const extent_map::extent &place, const loot &l);
  void tell_gone(const arena &a, const virtual_range &range);
  void tell_reserved(const arena &a, const virtual_range &range);
  void tell_chunk(const arena &a, const virtual_range &range);

  // allocator_growth.cpp; all require growth_mutex_
  result<void *> grow(arena &a, const block_request &r, std::unique_lock<std::mutex> &growing);
  result<void *> find_memory(arena &a, const block_request &r);
  result<segment *> extend(arena &a, const block_request &r, effort how);
  std::size_t ceiling() const;
  void pack_all();
  void unpack_if_settled(arena &a);
  std::optional<extent_map::extent> carve(arena &a, const block_request &r, effort how);
  status reserve_addresses(arena &a, std::size_t bytes);
  status gather(arena &a, std::size_t pages, effort how, loot &into);
  std::size_t take_from(arena &victim, std::size_t pages, loot &into);
  bool is_idle(arena &a);
  status create(arena &a, std::size_t pages, loot &into);
  status fence_off(arena &a, loot &l);
  status map(const extent_map::extent &place, loot &l);
  void put_back(loot &l);
  void let_go(arena &a, const extent_map::extent &place, loot &l);
  bool repeats_itself(arena &a);
  void forget_if_scattered(arena &a);
  bool forget_lent(arena &a);
  bool capturing(stream_ref s) const;

  // allocator_chunks.cpp: the same where there are no pages to map; all require growth_mutex_
  bool in_chunks() const { return pages_ == nullptr; }
  result<segment *> extend_by_chunk(arena &a, const block_request &r, effort how);
  result<arena::chunk> get_chunk(std::size_t bytes);
  status free_chunk(arena &a, const arena::chunk &c);
  std::size_t give_back_chunks(std::size_t bytes, bool wait, status &outcome);
  std::size_t give_back_chunks_of(arena &a, std::size_t bytes, status &outcome);
  result<physical_size> trim_chunks(std::size_t keep);
  void free_all_chunks() noexcept;
  void give_up_grant(std::size_t bytes) const noexcept;
  status nobody_captures() const;

  // private_pools.cpp; all require growth_mutex_
  arena &arena_of(private_pools::pool &p, stream_ref s);
  bool is_left_behind(arena &a);
  void reclaim_pools(bool wait);
  std::size_t kept_by_pools() const;

  // allocator_returns.cpp; all require growth_mutex_
  result<bool> is_past(fence &idle, bool wait);
  bool is_past(arena::other_use &u, bool wait);
  void reclaim(bool wait);
  void reclaim_held(arena &a, bool wait);
  void reclaim_leaving(arena &a, bool wait);
  status retire(arena &a, std::size_t pages, std::size_t &bytes);
  void flush_all();
  void unmap_everything() noexcept;
  status wait_for_device() const;

  std::size_t backed() const;
  std::size_t live() const;
  std::size_t page() const { return page_bytes_; }

  const fork_watch watch_;
  const stillmap::device device_;
  const std::shared_ptr<page_pool> pages_;  // nullptr: the device cannot map pages
  const std::size_t page_bytes_;
  const std::vector<access_grant> access_;
  const caching_allocator_options options_;
  const std::shared_ptr<trace_recorder> recorder_;  // nullptr: nobody wants a trace
  arena_directory directory_;

  mutable std::mutex growth_mutex_;
  std::size_t chunk_bytes_ = 0;                     // allocated; under growth_mutex_
  std::vector<std::unique_ptr<arena>> arenas_;      // changes under growth_mutex_; never shrinks
  mutable std::mutex arenas_mutex_;                 // and under this: for who only counts
  private_pools pools_;                             // under growth_mutex_
  std::vector<std::shared_ptr<page_pool>> guests_;  // pools of pages that came from elsewhere
  // Written under growth_mutex_, read by anybody.
  std::atomic<std::size_t> live_peak_{0}, backed_peak_{0};
  std::atomic<std::uint64_t> growths_{0}, created_{0}, moved_{0}, released_{0}, host_waits_{0},
      failed_{0};
};

}  // namespace stillmap
