// All memory of one stream: where its blocks are, and what is kept for
// reuse. Knows no driver: whoever grows it brings pages. Internal.
// docs/allocator.md#the-caching-allocator
// Threads: everything requires `lock`, except what never changes.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "stillmap/allocators/heap_map.h"
#include "stillmap/allocators/internal/arena_lock.h"
#include "stillmap/allocators/internal/block_table.h"
#include "stillmap/allocators/internal/extent_map.h"
#include "stillmap/allocators/internal/history_ring.h"
#include "stillmap/allocators/internal/placement_cache.h"
#include "stillmap/allocators/internal/slab.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/stream.h"

namespace stillmap {

// What is asked of an arena: `bytes` is rounded up to granules, by `slack`.
struct block_request {
  std::uint64_t bytes = 0;
  std::uint64_t alignment = allocation_granule;
  std::uint16_t slack = 0;

  bool small() const { return bytes <= slab::largest_block && alignment == allocation_granule; }
};

class arena {
 public:
  enum class free_outcome {
    done,
    not_ours,     // no block begins there, or it is free already
    needs_event,  // other streams used it: it goes on `held` once fences are recorded
  };
  struct counters {
    std::uint64_t live = 0, live_peak = 0;     // bytes handed out
    std::uint64_t slack = 0;                   // of those, not asked for
    std::uint64_t pending_free = 0;            // bytes freed, waiting for other streams
    std::uint64_t allocations = 0, frees = 0;  // the difference is handed out
    std::uint64_t recalled = 0;  // pages that came back to an address without a driver call
  };
  // A stream that used a block, and when it has got past that.
  struct stream_use {
    stream_ref stream;
    fence idle;
    bool recorded = false;  // false: no fence could be recorded there so far
  };
  // Freed, but other streams were using it then. A stream that has got past one has got past all
  // that had a smaller number than `earlier` when its fence was recorded.
  struct pending_block {
    std::uint64_t address = 0;
    std::vector<stream_use> uses;
    std::uint64_t earlier = 0;  // how many had been put into held by then
    std::uint64_t number = 0;   // which of them it is, from 0
  };
  // Pages that have gone elsewhere; still mapped here until work queued on the arena's stream has
  // passed.
  struct unmapping_extents {
    std::vector<extent *> extents;
    fence idle;
  };

  // Where there are no pages to map: what came from the driver as one, and can only go as one.
  struct chunk {
    virtual_range range;      // of whole pages, all of it in the books
    virtual_range allocated;  // as the driver has it; contains range
  };

  arena(std::uint64_t number, stream_ref s, std::size_t page_bytes)
      : id(number), stream(s), extents(page_bytes) {}
  arena(const arena &) = delete;

  // From what has pages already; nullptr: there is no room. Constant time where the size was freed
  // before, else a search of bounded length; no heap allocation where as many blocks have existed.
  void *allocate(const block_request &r) {
    if (r.small()) {
      if (slab *const s = slabs_.first(static_cast<std::size_t>(r.bytes))) {
        return allocate_in_slab(*s, r);
      }
      return allocate_beyond_slabs(r);
    }
    if (r.alignment == allocation_granule) {
      size_bin *bin = last_bin_;
      if (bin == nullptr || bin->bytes != r.bytes) bin = last_bin_ = placements_.find(r.bytes);
      if (bin != nullptr) {
        if (extent *const s = bin->first_cached()) {
          take_cached(*s);
          if (!s->in_table) enter_in_table(*s);
          return hand_out(*s, r);
        }
      }
    }
    return allocate_by_search(r);
  }

  free_outcome free(std::uint64_t address) {
    // Temporaries are freed right after they were made. (A extent that is no more is not handed
    // out, so what begins there and is, is the block.)
    extent *last = last_;
    if (last->begin != address || !last->allocated) {
      const block_ref block = blocks_.find(address);
      if (!block) return free_outcome::not_ours;
      if (block.in_slab()) return free_in_slab(*block.as_slab(), block.index());
      last = block.as_extent();
    }
    extent &s = *last;
    if (!s.allocated) return free_outcome::not_ours;
    if (s.cross_stream) return free_outcome::needs_event;
    count_free(s.bytes, s.slack);
    cache(s);
    return free_outcome::done;
  }

  // `address` is used on `other` too. False: no block is handed out there.
  bool record_use(std::uint64_t address, stream_ref other);
  // The block counts as freed, though its memory waits. Requires: free() said needs_fence.
  pending_block defer_free(std::uint64_t address);
  // Its fences are recorded, as far as can be.
  void add_pending(pending_block h) {
    h.number = pending_count_++;
    pending.push_back(std::move(h));
  }
  // The memory is free now. Requires: it was held.
  void complete_free(const pending_block &h);

  // A extent set aside by books.carve() has its pages: the block that was asked for.
  void *enter(extent *s, const block_request &r);
  void *enter_slab(extent *s, const block_request &r);
  // Pages are there for what books.carve() set aside, or are not; or stay where they were.
  extent *commit(const extent_map::carved_extent &e);
  void abandon(const extent_map::carved_extent &e);
  void put_back(extent *s);  // it was unmapping, and stays
  // The extent request that makes room for `r`.
  static block_request growth_for(const block_request &r);

  // Merges all that is kept for quick reuse.
  void flush();
  // Packed, blocks go where they break fewest pages, and not to where their size has been before.
  void pack(bool on);
  bool packed() const { return packed_; }
  // The same request again, after everything possible was merged; `whole`: not from a slab.
  void *allocate_best_fit(const block_request &r, bool whole);

  std::size_t usable_size(std::uint64_t address) const;  // 0: not handed out
  // arena_chunks.cpp
  void add_chunk(const chunk &c);  // all of it is free
  // Takes chunks of which nothing is in use out of the books: as few as make up `bytes`, or all.
  std::vector<chunk> take_chunks(std::size_t bytes);
  std::size_t unused_chunk_bytes();

  // arena_report.cpp
  struct block_facts {
    std::size_t usable = 0;  // 0: not handed out
    std::size_t requested = 0;
    bool cross_stream = false;
  };
  block_facts facts_of(std::uint64_t address) const;
  std::size_t size_of(const pending_block &h) const;
  // What a extent is, in one piece or, where it is a slab, one for each of its places.
  void describe(const extent &s, std::vector<heap_extent> &out) const;
  const counters &counted() const { return counters_; }
  std::size_t host_bytes() const;
  std::uint64_t cached_bytes() const { return cached_bytes_; }

  template <class Use>
  void each_slab_with_room(Use use) const {
    slabs_.each(use);
  }

  mutable arena_lock lock;
  const std::uint64_t id;
  const stream_ref stream;
  extent_map extents;
  std::vector<std::shared_ptr<address_block>> reservations;
  std::vector<chunk> chunks;
  std::vector<pending_block> pending;  // in the order of their numbers
  std::vector<unmapping_extents> unmapping;
  std::uint64_t pool = 0;           // the private pool whose it is, or was; 0: none
  bool pinned = false;              // the pool lives: no page leaves, or moves within
  std::uint64_t last_growth = 0;    // allocations there had been when pages were created for it
  std::uint64_t moved = 0;          // pages moved for it, halved now and then: when it had this
  std::uint64_t halved_at = 0;      // many allocations
  history_ring *history = nullptr;  // told of pages that are called back

 private:
  struct use_list {
    std::vector<stream_ref> streams;
    bool pending_free = false;
  };
  // Pages that are to be where they are aliased again, instead of at `owner`.
  struct recall {
    std::uint64_t aliased, owner, bytes;
    bool cached;  // something at the owner is kept for quick reuse
  };

  void *hand_out(extent &s, const block_request &r) {
    last_ = &s;
    s.allocated = true;
    s.slack = r.slack;
    count_allocation(r.bytes, r.slack);
    return device_address(s.begin).pointer();
  }
  void *allocate_in_slab(slab &s, const block_request &r) {
    if (s.free_blocks == s.block_count) --empty_slabs_;
    const unsigned place = s.acquire();
    if (s.free_blocks == 0) slabs_.unlink(&s);
    s.slack[place] = r.slack;
    count_allocation(r.bytes, r.slack);
    return device_address(s.address(place)).pointer();
  }
  free_outcome free_in_slab(slab &s, unsigned place) {
    if (s.is_free(place)) return free_outcome::not_ours;
    if ((s.cross_stream[place / 64] >> (place % 64) & 1) != 0) {
      const auto it = uses_.find(s.address(place));
      return it->second.pending_free ? free_outcome::not_ours : free_outcome::needs_event;
    }
    count_free(s.block_bytes, s.slack[place]);
    return_to_slab(s, place);
    return free_outcome::done;
  }
  void return_to_slab(slab &s, unsigned place) {
    s.release(place);
    if (s.free_blocks == 1) slabs_.link(&s);
    if (s.free_blocks < s.block_count) return;
    ++empty_slabs_;
    if (s.next != nullptr || s.previous != nullptr) dissolve(s);  // one of a class is kept
  }
  // What is handed out no more is kept as it is, where its size has a place for it.
  void cache(extent &s) {
    s.allocated = false;
    if (s.awaited) {
      s.awaited = false;
      wake(s.waiting);
    }
    if (s.bin == nullptr) {
      release(s);
      return;
    }
    s.bin->cache(&s);
    s.cached = true;
    cached_bytes_ += s.bytes;
  }
  // Its place is open still.
  void uncache(extent &s) {
    s.bin->uncache(&s);
    s.cached = false;
    cached_bytes_ -= s.bytes;
  }
  void take_cached(extent &s) {
    s.bin->take(&s);
    s.cached = false;
    cached_bytes_ -= s.bytes;
  }
  void count_allocation(std::uint64_t bytes, std::uint16_t slack) {
    counters_.live += bytes;
    if (counters_.live > counters_.live_peak) counters_.live_peak = counters_.live;
    counters_.slack += slack;
    ++counters_.allocations;
  }
  void count_free(std::uint64_t bytes, std::uint16_t slack) {
    counters_.live -= bytes;
    counters_.slack -= slack;
    ++counters_.frees;
  }
  void notify_recalled(std::uint64_t to, std::uint64_t from, std::uint64_t bytes) const;
  void *allocate_beyond_slabs(const block_request &r);
  void *allocate_by_search(const block_request &r);
  extent *find_extent(const block_request &r, extent_map::search mode);
  extent *find_cached_placement(const block_request &r);
  extent *claim(size_bin &of, std::size_t i);
  wait_list *blocker_of(extent &s);
  wait_list *recall_blocker(const extent &first, std::uint64_t begin, std::uint64_t end);
  wait_list *run_blocker(std::uint64_t aliased, std::uint64_t owner, std::uint64_t bytes);
  void perform_recall(const recall &r);
  void wake_for_pages(const extent_map::carved_extent &e);
  void evict(std::uint64_t begin, std::uint64_t end);
  extent *evict(extent &s);
  void detach_cached(extent &s, std::uint64_t begin);
  void enter_in_table(extent &s);
  void remember_placement(extent *s);
  void forget_placements();
  bool unused(const chunk &c);
  extent *release(extent &s);
  void dissolve(slab &s);

  // What every request touches, in two lines of the cache.
  alignas(64) extent *last_ = &nothing_;  // the last that was handed out
  size_bin *last_bin_ = nullptr;          // where the last request went
  std::uint64_t cached_bytes_ = 0;
  counters counters_;
  slab_lists slabs_;
  placement_cache placements_;
  extent nothing_;
  std::uint64_t claims_ = 0;     // that were for pages that are aliased
  std::vector<recall> recalls_;  // of the last
  wait_list want_pages_;         // waiting for pages where there are none
  wait_list want_recall_;        // waiting until other places share their pages
  std::size_t empty_slabs_ = 0;
  std::uint64_t pending_count_ = 0;  // ever
  bool packed_ = false;
  block_table blocks_;
  std::unordered_map<std::uint64_t, use_list> uses_;
  std::vector<std::unique_ptr<slab>> all_slabs_;
  std::vector<slab *> spare_slabs_;
};

}  // namespace stillmap
