// The memory of one stream: serves requests from the memory that it has, each where it went before if it can. Pure
// bookkeeping; page_source maps the pages. Internal. docs/allocator_placement.md
//
// Threads: everything requires lock(), or takes it, except the constants. What of an arena only growth uses is in
// arena_returns.h.
// Host memory: functions that say so may run out of it, and then allocate nothing. The others need none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "stillmap/allocators/engine/arena_lock.h"
#include "stillmap/allocators/engine/block_request.h"
#include "stillmap/allocators/engine/block_store.h"
#include "stillmap/allocators/engine/claim.h"
#include "stillmap/allocators/engine/growth_pattern.h"
#include "stillmap/allocators/engine/policy.h"
#include "stillmap/allocators/engine/shared_pages.h"
#include "stillmap/allocators/internal/history_ring.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/stream.h"

namespace stillmap {

// Where a request looks for memory.
enum class search_in : std::uint8_t {
  own_zone,   // that of its size
  all_zones,  // memory is short
};

class arena {
 public:
  // `zoned`: small blocks have addresses of their own. `in_chunks`: its pages cannot move, so it remembers
  // no places.
  // `shared`: of all arenas between which pages move. `history`: notified of recalled pages.
  arena(std::uint64_t number, stream_ref s, std::size_t page_bytes, bool zoned = false,
        bool in_chunks = false,
        std::shared_ptr<shared_pages> shared = std::make_shared<shared_pages>(),
        history_ring *history = nullptr)
      : id(number),
        served_{.stream = s},
        blocks_(page_bytes, !in_chunks, std::move(shared)),
        claim_(number),
        zoned_(zoned),
        in_chunks_(in_chunks),
        history_(history) {}
  arena(const arena &) = delete;

  arena_lock &lock() const STILLMAP_RETURN_CAPABILITY(lock_) { return lock_; }
  block_store &blocks() STILLMAP_REQUIRES(lock_) { return blocks_; }
  const block_store &blocks() const STILLMAP_REQUIRES(lock_) { return blocks_; }
  extent_map &extents() STILLMAP_REQUIRES(lock_) { return blocks_.extents; }
  const extent_map &extents() const STILLMAP_REQUIRES(lock_) { return blocks_.extents; }

  // ---- requests ----

  // Allocates from committed memory, with a search of bounded length; nullptr where none fits. May
  // run out of host memory, which it needs only when there are more blocks than ever before.
  void *allocate(const block_request &r) STILLMAP_REQUIRES(lock_);
  // The same for a request that block_store::reuse() has just refused, under the same lock.
  void *allocate_not_reused(const block_request &r) STILLMAP_REQUIRES(lock_);
  // Flushes, then allocates with a search of all free memory of the zones. `whole`: do not use a slab.
  // May run out.
  void *allocate_best_fit(const block_request &r, bool whole, search_in where)
      STILLMAP_REQUIRES(lock_);
  // Allocates at the remembered place. May run out.
  void *allocate_at_remembered(const block_request &r) STILLMAP_REQUIRES(lock_);
  // Records that `other` uses the block too. False: no allocated block begins there. May run out.
  bool record_use(std::uint64_t address, stream_ref other) STILLMAP_REQUIRES(lock_);

  // ---- what it knows of its program ----

  // What the latest growth knows. `short_of_memory`: freed blocks are merged before anything is searched.
  // `recalls_lent`: a place that lacks only lent pages is in its turn like any other; otherwise it is passed
  // over, while pages can be created.
  void set_memory_state(bool short_of_memory, bool recalls_lent) STILLMAP_REQUIRES(lock_) {
    short_of_memory_ = short_of_memory;
    recalls_lent_ = recalls_lent;
  }
  // Whether its program is known to repeat itself, as far as the pattern tells. Such an arena keeps freed
  // blocks whole, and its requests go where they went in the last iteration.
  bool repeats() const STILLMAP_EXCLUDES(lock_) {
    const lock_guard held(lock_);
    return blocks_.repeats();
  }
  void set_repeats(bool on) STILLMAP_REQUIRES(lock_);
  // Whether a request is served from free memory before it is asked which pending blocks are free. Not in a
  // loop: where a block lies would depend on when memory was last short. Blocks that are held back cost
  // events, and memory.
  bool searches_before_reclaim() const STILLMAP_REQUIRES(lock_);
  // The zone of blocks of that size.
  address_zone zone_of(std::uint64_t bytes) const {
    return zoned_ && bytes <= policy::largest_small ? address_zone::small : address_zone::large;
  }
  // Pages moved for this arena, halved from time to time.
  std::uint64_t moved() const STILLMAP_REQUIRES(lock_) { return moved_; }
  void note_moved(std::size_t pages) STILLMAP_REQUIRES(lock_) { moved_ += pages; }
  void age_moved() STILLMAP_REQUIRES(lock_);

  // ---- pages that went to other arenas and stay mapped here ----

  bool may_lend() const STILLMAP_REQUIRES(lock_) { return blocks_.repeats() && !served_.pinned; }
  // Whether allocate() stops at a remembered place that lacks only such pages. May run out.
  bool wants_lent(const block_request &r) STILLMAP_REQUIRES(lock_);
  // The lent pages that the remembered place of `r` needs: they are free or cached where they are. Empty: it
  // needs none. May run out.
  std::vector<page_recall> find_lent(const block_request &r, const other_blocks &others)
      STILLMAP_REQUIRES(lock_);
  // Once they are set aside: they are free here, and aliased where they were. May run out, and then changes nothing.
  // Requires: the locks of the arenas that they are in, which the analysis does not see.
  void recall_lent(const std::vector<page_recall> &pages) STILLMAP_REQUIRES(lock_);

  // ---- whom it serves ----

  // `ended`: the stream was destroyed, or is about to be; another may take the arena over, behind
  // arena_returns::last_work. `pool`: the private pool that owns it, or did; 0: none. `pinned`: that is alive, and
  // the pages neither leave nor move.
  struct service {
    stream_ref stream;
    bool ended = false, pinned = false;
    std::uint64_t pool = 0;
    // Not where it has ended: its handle may be that of another stream.
    bool serves(stream_ref s) const { return s == stream && !ended; }
  };
  // These change while growth holds its lock, too, so that what growth has read stays true.
  service service_now() const STILLMAP_EXCLUDES(lock_) {
    const lock_guard held(lock_);
    return served_;
  }
  void set_service(const service &now) STILLMAP_EXCLUDES(lock_) {
    const lock_guard held(lock_);
    served_ = now;
  }
  const service &service_locked() const STILLMAP_REQUIRES(lock_) { return served_; }

  std::size_t host_bytes() const STILLMAP_REQUIRES(lock_) {
    return sizeof(*this) + blocks_.host_bytes() + pattern_.host_bytes();
  }

  const std::uint64_t id;

 private:
  // A remembered place of the request that is available. `lent`: there is one before it that lacks only lent
  // pages; with `stop_at_lent`, which else passes it over.
  struct claimed {
    extent *block = nullptr;
    bool lent = false;
  };
  template <class Visit>
  void each_remembered(const block_request &r, Visit visit) STILLMAP_REQUIRES(lock_);
  claimed claim_remembered(const block_request &r, bool stop_at_lent) STILLMAP_REQUIRES(lock_);
  extent *find_extent(const block_request &r, search_in where) STILLMAP_REQUIRES(lock_);
  void add_to_pattern(const block_request &r) STILLMAP_REQUIRES(lock_);
  void notify_recalled(const std::vector<page_recall> &pages) const STILLMAP_REQUIRES(lock_);

  mutable arena_lock lock_;
  service served_ STILLMAP_GUARDED_BY(lock_);
  block_store blocks_ STILLMAP_GUARDED_BY(lock_);
  claim claim_ STILLMAP_GUARDED_BY(lock_);
  growth_pattern pattern_ STILLMAP_GUARDED_BY(lock_);
  // The number of allocations when `moved_` was halved last.
  std::uint64_t moved_ STILLMAP_GUARDED_BY(lock_) = 0, halved_at_ STILLMAP_GUARDED_BY(lock_) = 0;
  bool short_of_memory_ STILLMAP_GUARDED_BY(lock_) = false;
  bool recalls_lent_ STILLMAP_GUARDED_BY(lock_) = false;
  const bool zoned_;
  const bool in_chunks_;
  history_ring *const history_;  // nullptr: none
};

}  // namespace stillmap
