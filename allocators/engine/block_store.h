// The blocks of an arena: which are allocated, which are cached, and where a loop's went. Finds memory only by what
// is at hand; arena decides about the rest. Internal. docs/allocator_placement.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "stillmap/allocators/engine/block_cache.h"
#include "stillmap/allocators/engine/block_request.h"
#include "stillmap/allocators/engine/block_table.h"
#include "stillmap/allocators/engine/block_uses.h"
#include "stillmap/allocators/engine/extent_map.h"
#include "stillmap/allocators/engine/loop_memory.h"
#include "stillmap/allocators/engine/shared_pages.h"
#include "stillmap/allocators/engine/slab_store.h"
#include "stillmap/vmm/stream.h"

namespace stillmap {

enum class free_outcome {
  done,
  not_ours,     // no allocated block begins there
  needs_event,  // other streams used it: record events on them, then queue it
};

struct block_counters {
  std::uint64_t live = 0, live_peak = 0;  // bytes of allocated blocks
  std::uint64_t slack = 0;                // of `live`: rounding
  std::uint64_t pending_free = 0;         // bytes of freed blocks that wait for other streams
  std::uint64_t allocations = 0, frees = 0;
  std::uint64_t recalled = 0;  // pages that returned to an address without a driver call

  std::uint64_t blocks() const { return allocations - frees; }
  void count_allocation(std::uint64_t bytes, std::uint16_t rounding) {
    live += bytes;
    if (live > live_peak) live_peak = live;
    slack += rounding;
    ++allocations;
  }
  void count_free(std::uint64_t bytes, std::uint16_t rounding) {
    live -= bytes;
    slack -= rounding;
    ++frees;
  }
};

// Threads: externally synchronised. Functions that say so may run out of host memory, and then change nothing. The
// others need none.
class block_store {
 public:
  block_store(std::size_t page_bytes, bool pages_move, std::shared_ptr<shared_pages> shared)
      : extents(page_bytes, pages_move, std::move(shared)) {}
  block_store(const block_store &) = delete;

  // ---- the fast path, in constant time ----

  // A place in a slab, or the cached block that a loop got at this point of its last iteration; nullptr: neither.
  // Requires: alignment to the granule.
  [[gnu::always_inline]] void *reuse(const block_request &r) noexcept {
    if (r.bytes <= slab::largest_block) {
      slab *const s = slabs_.first(static_cast<std::size_t>(r.bytes));
      if (s == nullptr || (s->empty() && !reuse_empty(*s))) return nullptr;
      return allocate_in(*s, r);
    }
    const std::uint64_t begin = loop_.expected(r.bytes);
    if (begin == 0) return nullptr;
    const block_ref there = table_.find(begin);
    if (!there || there.in_slab()) return nullptr;
    extent &s = *there.as_extent();
    if (!s.cached || s.bytes != r.bytes) return nullptr;
    take_expected(s);
    return hand_out(s, r);
  }
  [[gnu::always_inline]] free_outcome free(std::uint64_t address) noexcept {
    // Temporaries are often freed right after they were allocated. A recycled extent is never
    // marked allocated, so a match is the block.
    extent *last = last_;
    if (last->begin != address || !last->allocated) {
      const block_ref block = table_.find(address);
      if (!block) return free_outcome::not_ours;
      if (block.in_slab()) return free_in_slab(*block.as_slab(), block.index());
      last = block.as_extent();
    }
    extent &s = *last;
    if (!s.allocated) return free_outcome::not_ours;
    if (s.cross_stream) return free_outcome::needs_event;
    counters_.count_free(s.bytes, s.slack);
    cache(s);
    return free_outcome::done;
  }

  // ---- blocks in extents ----

  // Turns a live extent into the block. May run out: then the extent is free memory.
  void *enter(extent *s, const block_request &r) {
    if (!s->in_table) enter_in_table_or_release(*s);
    begin_use(*s, r.plainly_aligned());
    s->cross_stream = false;
    return hand_out(*s, r);
  }
  // The same into a slab with the block; and into either, an extent of block_request::extent_request().
  void *enter_slab(extent *memory, const block_request &r);
  void *enter_found(extent *s, const block_request &r) {
    return r.small() ? enter_slab(s, r) : enter(s, r);
  }
  // A place in a slab that has one; nullptr: none.
  void *find_in_slab(const block_request &r) {
    slab *const s = slabs_.first(static_cast<std::size_t>(r.bytes));
    return s != nullptr ? allocate_in(*s, r) : nullptr;
  }
  // A cached extent of exactly that size, which is live from now on; nullptr: none. A loop whose blocks stay whole is
  // served in the shortest time.
  extent *take_cached(std::uint64_t bytes);
  void take_cached(extent &s) { cache_.remove(s); }
  // A cached extent becomes part of the block at `begin`: removes its other entry from the table.
  void detach_cached(extent &s, std::uint64_t begin);
  // Frees what is cached between two addresses. `hint`: see extent_map::at.
  void evict(std::uint64_t begin, std::uint64_t end, extent *hint = nullptr);
  // Frees all that is cached, and all empty slabs.
  void flush();
  bool has_cached() const { return cache_.bytes() != 0 || empty_slabs_; }
  std::uint64_t cached_bytes() const { return cache_.bytes(); }

  // ---- blocks that other streams use ----

  // May run out. Requires: the block is allocated.
  void record_use(std::uint64_t address, stream_ref other);
  // Counts the block as freed; its memory waits. Requires: free() returned needs_event.
  pending_block &defer_free(std::uint64_t address);
  // Makes the memory of a pending block free.
  void complete_free(std::uint64_t address);
  block_uses uses;

  // ---- what a loop does ----

  // Where it is known that the program repeats itself, freed blocks are kept whole, and places are remembered.
  bool repeats() const { return repeats_; }
  void set_repeats(bool on);
  // Searches the memory of the loop for a request; find() of the result tells where it went.
  const loop_memory &search_loop(const block_request &r) {
    loop_.begin_search(r.bytes, counters_.live, counters_.blocks());
    return loop_;
  }

  // ---- figures ----

  const block_counters &counters() const { return counters_; }
  block_counters &counters() { return counters_; }
  // The extent or slab that an allocated block is in, or a pending or cached one.
  block_ref find(std::uint64_t address) const { return table_.find(address); }
  std::size_t usable_size(std::uint64_t address) const;  // 0: not allocated
  std::size_t host_bytes() const {
    return extents.host_bytes() + table_.host_bytes() + loop_.host_bytes() + slabs_.host_bytes();
  }

  extent_map extents;

 private:
  void *hand_out(extent &s, const block_request &r) {
    last_ = &s;
    s.allocated = true;
    s.slack = r.slack;
    counters_.count_allocation(r.bytes, r.slack);
    return device_address(s.begin).pointer();
  }
  void *allocate_in(slab &s, const block_request &r) {
    counters_.count_allocation(r.bytes, r.slack);
    return device_address(slabs_.acquire(s, r.slack)).pointer();
  }
  // Whether a request goes to this empty slab: it is not cached, or it is what comes next in the loop.
  bool reuse_empty(slab &s) {
    extent &memory = *s.memory;
    if (!memory.cached) return true;
    if (loop_.expected(memory.bytes) != memory.begin) return false;
    take_expected(memory);
    return true;
  }
  free_outcome free_in_slab(slab &s, unsigned place) {
    if (s.is_free(place)) return free_outcome::not_ours;
    if ((s.cross_stream[place / 64] >> (place % 64) & 1) != 0) {
      return uses.is_deferred(s.address(place)) ? free_outcome::not_ours
                                                : free_outcome::needs_event;
    }
    counters_.count_free(s.block_bytes, s.slack[place]);
    return_to_slab(s, place);
    return free_outcome::done;
  }
  void return_to_slab(slab &s, unsigned place) {
    s.release(place);
    if (s.free_blocks == 1 || s.empty()) relink(s);
  }
  // A block was returned to a full slab, or the last one to any.
  [[gnu::noinline]] void relink(slab &s);
  void link(slab &s);
  void remove_empty(slab &s);
  // Keeps a freed extent whole for its next turn in the loop, or frees it where there is none.
  void cache(extent &s) {
    s.allocated = false;
    loop_.remove(s);
    if (!repeats_) [[unlikely]] {
      release(s);
      return;
    }
    cache_.add(s);
  }
  void take_expected(extent &s) {
    cache_.remove(s);
    loop_.take_expected();
    loop_.add_again(s);
  }
  // An extent is in use from now on. `remembered`: as the request that was searched for last.
  void begin_use(extent &s, bool remembered) {
    if (remembered && repeats_) loop_.remember(s);
    loop_.add(s);
  }
  extent *release(extent &s);
  void leave_table(extent &s);
  void enter_in_table_or_release(extent &s);

  // The members that every request touches, in two cache lines.
  alignas(64) extent *last_ = &nothing_;  // the last allocated extent
  block_counters counters_;
  block_cache cache_;
  block_table table_;
  slab_store slabs_{table_};
  loop_memory loop_;
  extent nothing_;
  // There may be an empty slab that is not cached.
  bool empty_slabs_ = false;
  bool repeats_ = false;
};

}  // namespace stillmap
