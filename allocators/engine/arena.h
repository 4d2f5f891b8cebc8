// The memory of one stream: its blocks, and the free memory that is kept for reuse. Pure
// bookkeeping; allocator_core maps the pages. Internal. docs/allocator_placement.md
//
// Threads: everything requires `lock`, except the constants. What of an arena only growth uses is in
// arena_returns.h.
// Host memory: functions that say so may run out of it, and then allocate nothing. The others need none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "stillmap/allocators/engine/address_directory.h"
#include "stillmap/allocators/engine/arena_lock.h"
#include "stillmap/allocators/engine/block_table.h"
#include "stillmap/allocators/engine/extent_map.h"
#include "stillmap/allocators/engine/growth_pattern.h"
#include "stillmap/allocators/engine/loop_memory.h"
#include "stillmap/allocators/engine/pending_frees.h"
#include "stillmap/allocators/engine/policy.h"
#include "stillmap/allocators/engine/slab.h"
#include "stillmap/allocators/heap_map.h"
#include "stillmap/allocators/internal/history_ring.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/stream.h"

namespace stillmap {

class all_arena_locks;
struct held_arenas;

// A request to an arena. `bytes` is rounded up to granules; `slack` is the rounding.
struct block_request {
  std::uint64_t bytes = 0;
  std::uint64_t alignment = allocation_granule;
  std::uint16_t slack = 0;

  bool small() const { return bytes <= slab::largest_block && alignment == allocation_granule; }
};

// Where a request looks for memory.
enum class search_in : std::uint8_t {
  own_zone,   // that of its size
  all_zones,  // memory is short
};

class arena {
 public:
  enum class free_outcome {
    done,
    not_ours,     // no allocated block begins there
    needs_event,  // other streams used it: record events on them, then add it to `deferred`
  };
  struct counters {
    std::uint64_t live = 0, live_peak = 0;  // bytes of allocated blocks
    std::uint64_t slack = 0;                // of `live`: rounding
    std::uint64_t pending_free = 0;         // bytes of freed blocks that wait for other streams
    std::uint64_t allocations = 0, frees = 0;
    std::uint64_t recalled = 0;  // pages that returned to an address without a driver call
  };
  // Without VMM: memory that one driver call allocated and one call frees.
  struct chunk {
    virtual_range range;      // whole pages, all of them in `extents`
    virtual_range allocated;  // as the driver returned it; contains range
  };

  // `zoned`: small blocks have addresses of their own. `in_chunks`: its pages cannot move, so it remembers
  // no places.
  // `shared`: of all arenas between which pages move. `history`: notified of recalled pages.
  arena(std::uint64_t number, stream_ref s, std::size_t page_bytes, bool zoned = false,
        bool in_chunks = false,
        std::shared_ptr<shared_pages> shared = std::make_shared<shared_pages>(),
        history_ring *history = nullptr)
      : stream(s),
        id(number),
        extents(page_bytes, !in_chunks, std::move(shared)),
        examinations_(number << 40),
        zoned_(zoned),
        in_chunks_(in_chunks),
        history_(history) {}
  arena(const arena &) = delete;

  // The fast path of allocate(), in constant time: a place in a slab, or the cached block that a loop got
  // at this point of its last iteration. nullptr: allocate() may still find memory. Requires: alignment
  // to the granule.
  [[gnu::always_inline]] void *reuse(const block_request &r) noexcept STILLMAP_REQUIRES(lock) {
    if (r.bytes <= slab::largest_block) {
      slab *const s = slabs_.first(static_cast<std::size_t>(r.bytes));
      if (s == nullptr || (s->empty() && !reuse_empty(*s))) return nullptr;
      return allocate_in_slab(*s, r);
    }
    const std::uint64_t begin = loop_.expected(r.bytes);
    if (begin == 0) return nullptr;
    const block_ref there = blocks_.find(begin);
    if (!there || there.in_slab()) return nullptr;
    extent &s = *there.as_extent();
    if (!s.cached || s.bytes != r.bytes) return nullptr;
    take_expected(s);
    return hand_out(s, r);
  }
  // Allocates from committed memory, with a search of bounded length; nullptr where none fits. May
  // run out of host memory, which it needs only when there are more blocks than ever before.
  void *allocate(const block_request &r) STILLMAP_REQUIRES(lock);
  // The same for a request that reuse() has just refused, under the same lock.
  void *allocate_not_reused(const block_request &r) STILLMAP_REQUIRES(lock);

  [[gnu::always_inline]] free_outcome free(std::uint64_t address) noexcept STILLMAP_REQUIRES(lock) {
    // Temporaries are often freed right after they were allocated. A recycled extent is never
    // marked allocated, so a match is the block.
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

  // arena_uses.cpp
  // Records that `other` uses the block too. False: no allocated block begins there. May run out.
  bool record_use(std::uint64_t address, stream_ref other) STILLMAP_REQUIRES(lock);
  // Counts the block as freed; its memory waits. Requires: free() returned needs_event.
  pending_block &defer_free(std::uint64_t address) STILLMAP_REQUIRES(lock);
  // Whether blocks are used on `s`, and the same as stream_use::forget for these uses; freed blocks in
  // `pending` are not concerned.
  bool has_uses_on(stream_ref s) STILLMAP_REQUIRES(lock);
  void forget_uses(stream_ref s, std::uint64_t number, const fence &behind) STILLMAP_REQUIRES(lock);
  // Makes the memory of a pending block free.
  void complete_free(std::uint64_t address) STILLMAP_REQUIRES(lock);

  // Turns a committed extent from extents.carve() into the requested block. May run out: then the
  // extent is free memory.
  void *enter(extent *s, const block_request &r) STILLMAP_REQUIRES(lock) {
    if (!s->in_table) enter_in_table_or_release(*s);
    begin_use(*s, r.alignment == allocation_granule);
    s->cross_stream = false;
    return hand_out(*s, r);
  }
  void *enter_slab(extent *s, const block_request &r) STILLMAP_REQUIRES(lock);
  // The same for an extent of growth_for().
  void *enter_found(extent *s, const block_request &r) STILLMAP_REQUIRES(lock) {
    return r.small() ? enter_slab(s, r) : enter(s, r);
  }
  // The extent that must be carved to serve `r`: `r` itself, or a slab for it.
  static block_request growth_for(const block_request &r);

  // arena_claim.cpp: pages that went to other arenas and stay mapped here.
  bool lends() const STILLMAP_REQUIRES(lock) { return repeats_ && !pinned; }
  // Whether allocate() stops at a remembered place that lacks only such pages. May run out.
  bool wants_lent(const block_request &r) STILLMAP_REQUIRES(lock);
  // Pages to be used at the address `alias` again, where they are still mapped, instead of at `owner`.
  struct recall {
    std::uint64_t alias = 0, owner = 0, bytes = 0;
    arena *in = nullptr;   // where they are now
    extent *at = nullptr;  // there, before any recall; lent pages: once they are set aside
  };
  // The lent pages that the remembered place of `r` needs: they are free or cached where they are. Empty: it
  // needs none. May run out.
  std::vector<recall> find_lent(const block_request &r, const held_arenas &others);
  // Sets them aside. May run out.
  static void take_lent(std::vector<recall> &pages, const all_arena_locks &held);
  static void put_back_lent(const std::vector<recall> &pages, const all_arena_locks &held);
  // They are free here, and aliased where they were. May run out, and then changes nothing.
  void recall_lent(const std::vector<recall> &pages, const all_arena_locks &held);
  // Allocates at the remembered place. May run out.
  void *allocate_at_remembered(const block_request &r) STILLMAP_REQUIRES(lock);

  // Merges all cached blocks and empty slabs into free memory.
  void flush() STILLMAP_REQUIRES(lock);
  // What the latest growth knows. `short_of_memory`: freed blocks are merged before anything is searched.
  // `recalls_lent`: a place that lacks only lent pages is in its turn like any other; otherwise it is passed
  // over, while pages can be created.
  void set_memory_state(bool short_of_memory, bool recalls_lent) STILLMAP_REQUIRES(lock) {
    short_of_memory_ = short_of_memory;
    recalls_lent_ = recalls_lent;
  }
  // Whether its program is known to repeat itself, as far as the pattern tells. Such an arena keeps freed
  // blocks whole, and its requests go where they went in the last iteration.
  bool repeats() const STILLMAP_REQUIRES(lock) { return repeats_; }
  void set_repeats(bool on) STILLMAP_REQUIRES(lock);
  // Whether a request is served from free memory before it is asked which pending blocks are free. Not in a
  // loop: where a block lies would depend on when memory was last short. Blocks that are held back cost
  // events, and memory.
  bool searches_before_reclaim() const STILLMAP_REQUIRES(lock) {
    return pending_blocks_ == 0 ||
           (!repeats_ && pending_blocks_ <= policy::max_pending_unasked &&
            counters_.pending_free <= counters_.live / policy::pending_unasked_divisor);
  }
  // Flushes, then allocates with a search of all free memory of the zones. `whole`: do not use a slab.
  // May run out.
  void *allocate_best_fit(const block_request &r, bool whole, search_in where)
      STILLMAP_REQUIRES(lock);
  // The zone of blocks of that size.
  address_zone zone_of(std::uint64_t bytes) const {
    return zoned_ && bytes <= policy::largest_small ? address_zone::small : address_zone::large;
  }

  std::size_t usable_size(std::uint64_t address) const STILLMAP_REQUIRES(lock);  // 0: not allocated
  // arena_chunks.cpp
  // As free memory. May run out.
  void add_chunk(const chunk &c, address_zone zone) STILLMAP_REQUIRES(lock);
  // Sets unused chunks aside: as few as make up `bytes`, or all. May run out.
  std::vector<chunk> take_chunks(std::size_t bytes) STILLMAP_REQUIRES(lock);
  // One that was set aside is free memory again; no longer exists.
  void put_back(const chunk &c) STILLMAP_REQUIRES(lock);
  void remove(const chunk &c) STILLMAP_REQUIRES(lock);
  std::size_t unused_chunk_bytes() STILLMAP_REQUIRES(lock);

  // arena_report.cpp
  struct block_facts {
    std::size_t usable = 0;  // 0: not allocated
    std::size_t requested = 0;
    bool cross_stream = false;
    stream_ref stream;  // of the arena
  };
  block_facts facts_of(std::uint64_t address) const STILLMAP_REQUIRES(lock);
  // Of a pending block.
  std::size_t pending_bytes(std::uint64_t address) const STILLMAP_REQUIRES(lock);
  // Appends each extent, or for a slab each of its blocks.
  void describe(std::vector<heap_extent> &out) const STILLMAP_REQUIRES(lock);
  const counters &counted() const STILLMAP_REQUIRES(lock) { return counters_; }
  void reset_peak() STILLMAP_REQUIRES(lock) { counters_.live_peak = counters_.live; }
  std::size_t host_bytes() const STILLMAP_REQUIRES(lock);
  std::uint64_t cached_bytes() const STILLMAP_REQUIRES(lock) { return cached_bytes_; }

  mutable arena_lock lock;
  // These four change while growth holds its mutex, too, so that what it has read stays true. `ended`: the
  // stream was destroyed, or is about to be; another may take the arena over, behind
  // arena_returns::last_work.
  stream_ref stream STILLMAP_GUARDED_BY(lock);
  bool ended STILLMAP_GUARDED_BY(lock) = false;
  // The private pool that owns it, or did; 0: none. `pinned`: it is alive, and the pages neither leave nor
  // move.
  std::uint64_t pool STILLMAP_GUARDED_BY(lock) = 0;
  bool pinned STILLMAP_GUARDED_BY(lock) = false;
  // Not where it has ended: its handle may be that of another stream.
  bool serves(stream_ref s) const STILLMAP_REQUIRES(lock) { return s == stream && !ended; }
  // What growth asks without the lock. A request may change what is known of the program meanwhile.
  struct facts {
    stream_ref stream;
    bool ended = false, pinned = false, repeats = false;
    bool serves(stream_ref s) const { return s == stream && !ended; }
  };
  facts now() const STILLMAP_EXCLUDES(lock) {
    const lock_guard held(lock);
    return {stream, ended, pinned, repeats_};
  }

  const std::uint64_t id;
  extent_map extents STILLMAP_GUARDED_BY(lock);
  std::vector<std::shared_ptr<address_block>> reservations STILLMAP_GUARDED_BY(lock);
  std::vector<chunk> chunks STILLMAP_GUARDED_BY(lock);
  // Added by free; moved to arena_returns::pending by the next growth.
  pending_list deferred STILLMAP_GUARDED_BY(lock);
  // Pages moved for this arena, halved from time to time; halved_at is the number of allocations at
  // the last halving.
  std::uint64_t moved STILLMAP_GUARDED_BY(lock) = 0;
  std::uint64_t halved_at STILLMAP_GUARDED_BY(lock) = 0;
  growth_pattern pattern STILLMAP_GUARDED_BY(lock);

 private:
  // What a search says of a place.
  enum class availability : std::uint8_t {
    available,  // without a driver call: each part is free, cached, or aliased to such pages
    lent,       // but for pages that are lent
    in_use,
  };

  void *hand_out(extent &s, const block_request &r) STILLMAP_REQUIRES(lock) {
    last_ = &s;
    s.allocated = true;
    s.slack = r.slack;
    count_allocation(r.bytes, r.slack);
    return device_address(s.begin).pointer();
  }
  // Whether a request goes to this empty slab: it is not cached, or it is what comes next in the loop.
  bool reuse_empty(slab &s) STILLMAP_REQUIRES(lock) {
    extent &memory = *s.memory;
    if (!memory.cached) return true;
    if (loop_.expected(memory.bytes) != memory.begin) return false;
    take_expected(memory);
    return true;
  }
  void *allocate_in_slab(slab &s, const block_request &r) STILLMAP_REQUIRES(lock) {
    const unsigned place = s.acquire();
    s.slack[place] = r.slack;
    count_allocation(r.bytes, r.slack);
    void *const block = device_address(s.address(place)).pointer();
    return s.free_blocks != 0 ? block : unlink_full(s, block);
  }
  // Returns `block`: as its last call it costs allocate_in_slab no registers.
  [[gnu::noinline]] void *unlink_full(slab &s, void *block) STILLMAP_REQUIRES(lock) {
    slabs_.unlink(&s);
    return block;
  }
  free_outcome free_in_slab(slab &s, unsigned place) STILLMAP_REQUIRES(lock) {
    if (s.is_free(place)) return free_outcome::not_ours;
    if ((s.cross_stream[place / 64] >> (place % 64) & 1) != 0) {
      const auto it = uses_.find(s.address(place));
      return it->second.freed ? free_outcome::not_ours : free_outcome::needs_event;
    }
    count_free(s.block_bytes, s.slack[place]);
    return_to_slab(s, place);
    return free_outcome::done;
  }
  void return_to_slab(slab &s, unsigned place) STILLMAP_REQUIRES(lock) {
    s.release(place);
    if (s.free_blocks == 1 || s.empty()) relink(s);
  }
  // A block was returned to a full slab, or the last one to any.
  [[gnu::noinline]] void relink(slab &s) STILLMAP_REQUIRES(lock) {
    if (s.free_blocks == 1) link(s);
    if (s.empty()) slab_emptied(s);
  }
  void link(slab &s) STILLMAP_REQUIRES(lock) {
    slab *const other = slabs_.first(s.block_bytes);
    if (other != nullptr && other->empty()) remove_empty(*other);
    slabs_.link(&s);
  }
  // Its memory is cached like any block, and still divided: the next request of the class may get
  // it. Where nothing is remembered, it is kept only while no other slab has room.
  void slab_emptied(slab &s) STILLMAP_REQUIRES(lock) {
    if (!slabs_.alone(&s))
      remove_empty(s);
    else if (!repeats_)
      empty_slabs_ = true;
    else
      cache(*s.memory);
  }
  // Keeps a freed extent whole for its next turn in the loop, or frees it where there is none.
  void cache(extent &s) STILLMAP_REQUIRES(lock) {
    s.allocated = false;
    loop_.remove(s);
    if (!repeats_) [[unlikely]] {
      release(s);
      return;
    }
    cached_.insert_unsorted(s);
    s.cached = true;
    cached_bytes_ += s.bytes;
  }
  void uncache(extent &s) STILLMAP_REQUIRES(lock) {
    if (cached_.is_sorted(s)) [[unlikely]]
      cached_.remove(s);
    else
      cached_.remove_unsorted(s);
    s.cached = false;
    cached_bytes_ -= s.bytes;
  }
  void take_expected(extent &s) STILLMAP_REQUIRES(lock) {
    uncache(s);
    loop_.take_expected();
    loop_.add_again(s);
  }
  // An extent is in use from now on. `remembered`: as the request that was searched for last.
  void begin_use(extent &s, bool remembered) STILLMAP_REQUIRES(lock) {
    if (remembered && repeats_) loop_.remember(s);
    loop_.add(s);
  }
  void count_allocation(std::uint64_t bytes, std::uint16_t slack) STILLMAP_REQUIRES(lock) {
    counters_.live += bytes;
    if (counters_.live > counters_.live_peak) counters_.live_peak = counters_.live;
    counters_.slack += slack;
    ++counters_.allocations;
  }
  void count_free(std::uint64_t bytes, std::uint16_t slack) STILLMAP_REQUIRES(lock) {
    counters_.live -= bytes;
    counters_.slack -= slack;
    ++counters_.frees;
  }
  void describe(const extent &s, std::vector<heap_extent> &out) const STILLMAP_REQUIRES(lock);
  void notify_recalled(std::uint64_t to, std::uint64_t from, std::uint64_t bytes) const
      STILLMAP_REQUIRES(lock);
  void add_to_pattern(const block_request &r) STILLMAP_REQUIRES(lock);
  extent *find_cached(std::uint64_t bytes) STILLMAP_REQUIRES(lock);
  extent *find_extent(const block_request &r, search_in where) STILLMAP_REQUIRES(lock);
  template <class Visit>
  void each_remembered(const block_request &r, Visit visit) STILLMAP_REQUIRES(lock);
  // A remembered place of the request that is available. `lent`: there is one before it that lacks only lent
  // pages; with `stop_at_lent`, which else passes it over.
  struct claimed {
    extent *block = nullptr;
    bool lent = false;
  };
  claimed claim_remembered(const block_request &r, bool stop_at_lent) STILLMAP_REQUIRES(lock);
  extent *claim(extent *first, std::uint64_t begin, std::uint64_t bytes) STILLMAP_REQUIRES(lock);
  availability examine(const extent *first, std::uint64_t begin, std::uint64_t end,
                       const held_arenas *others) STILLMAP_REQUIRES(lock);
  availability examine_aliased(std::uint64_t at, std::uint64_t last, const virtual_range &place,
                               const held_arenas *others) STILLMAP_REQUIRES(lock);
  static bool is_unused(const extent &s) { return s.state == extent_state::free || s.cached; }
  bool all_unused(const extent *first, std::uint64_t end) const STILLMAP_REQUIRES(lock);
  extent *perform_recalls(extent *first, std::uint64_t begin) STILLMAP_REQUIRES(lock);
  void evict(std::uint64_t begin, std::uint64_t end, extent *hint = nullptr)
      STILLMAP_REQUIRES(lock);
  extent *evict(extent &s) STILLMAP_REQUIRES(lock);
  void detach_cached(extent &s, std::uint64_t begin) STILLMAP_REQUIRES(lock);
  void enter_in_table(extent &s) STILLMAP_REQUIRES(lock);
  void enter_in_table_or_release(extent &s) STILLMAP_REQUIRES(lock);
  void expect_slab(std::size_t bytes) STILLMAP_REQUIRES(lock);
  void add_use(std::uint64_t address, stream_ref other) STILLMAP_REQUIRES(lock);
  template <class Act>
  void each_use_on(stream_ref s, Act act) STILLMAP_REQUIRES(lock);
  bool unused(const chunk &c) STILLMAP_REQUIRES(lock);
  extent *release(extent &s) STILLMAP_REQUIRES(lock);
  void remove_empty(slab &s) STILLMAP_REQUIRES(lock);
  void dissolve(extent &memory) STILLMAP_REQUIRES(lock);

  // The members that every request touches, in two cache lines.
  alignas(64) extent *last_ STILLMAP_GUARDED_BY(lock) = &nothing_;  // the last allocated extent
  std::uint64_t cached_bytes_ STILLMAP_GUARDED_BY(lock) = 0;
  counters counters_ STILLMAP_GUARDED_BY(lock);
  slab_heaps slabs_ STILLMAP_GUARDED_BY(lock);
  loop_memory loop_ STILLMAP_GUARDED_BY(lock);
  tlsf_index<extent, &extent::by_size> cached_ STILLMAP_GUARDED_BY(lock);
  extent nothing_ STILLMAP_GUARDED_BY(lock);
  // The last look at aliased pages; no other arena has its number.
  std::uint64_t examinations_ STILLMAP_GUARDED_BY(lock);
  std::vector<recall> recalls_ STILLMAP_GUARDED_BY(lock);  // of the last one
  bool short_of_memory_ STILLMAP_GUARDED_BY(lock) = false;
  bool recalls_lent_ STILLMAP_GUARDED_BY(lock) = false;
  // There may be an empty slab that is not cached.
  bool empty_slabs_ STILLMAP_GUARDED_BY(lock) = false;
  bool repeats_ STILLMAP_GUARDED_BY(lock) = false;
  const bool zoned_;
  const bool in_chunks_;
  history_ring *const history_;  // nullptr: none
  block_table blocks_ STILLMAP_GUARDED_BY(lock);
  using use_map = std::unordered_map<std::uint64_t, pending_block>;
  use_map uses_ STILLMAP_GUARDED_BY(lock);                    // by address
  std::size_t pending_blocks_ STILLMAP_GUARDED_BY(lock) = 0;  // of these, blocks that are freed
  // Of blocks that are free again, each with room for a use.
  std::vector<use_map::node_type> spare_uses_ STILLMAP_GUARDED_BY(lock);
  std::vector<std::unique_ptr<slab>> all_slabs_ STILLMAP_GUARDED_BY(lock);
  std::vector<slab *> spare_slabs_ STILLMAP_GUARDED_BY(lock);
};

}  // namespace stillmap
