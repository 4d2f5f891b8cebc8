// The extents of an arena's addresses: placement of blocks, and the choice of addresses that lack
// the fewest pages. Pure bookkeeping: no driver, no lock, no page.
// docs/allocator_placement.md
//
// Blocks are placed at granules, so neighbours may share a page. Uncommitted, unmapping and aliased
// extents consist of whole pages. A page is committed if any part of it is free or live.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stillmap/allocators/engine/extent.h"
#include "stillmap/allocators/engine/extent_set.h"

namespace stillmap {

class extent_map : public extent_set {
 public:
  using extent_set::extent_set;

  // Addresses for a block that still lack pages. `node` is the extent that was set aside.
  struct carved_extent {
    extent *node = nullptr;
    std::uint64_t begin = 0;  // of the block
    std::uint64_t bytes = 0;
    virtual_range missing;  // whole pages to be mapped, within node
  };
  enum class search { quick, thorough };  // among a bounded number of uncommitted extents, or all

  // Functions that say so may run out of host memory, and then change nothing. The others need none.

  // Returns a live extent of `bytes` at a multiple of `alignment` (a power of two), from free
  // memory of a zone; nullptr where the search finds none. May run out.
  extent *place(std::uint64_t bytes, std::uint64_t alignment = allocation_granule,
                address_zone zone = address_zone::large);
  // Returns the free extent that it is part of now.
  extent *release(extent *live) { return set_state(live, extent_state::free); }

  // Sets aside the addresses of a zone that need the fewest new pages. Requires: place() returned
  // nullptr, and no other carved extent is neither committed nor abandoned. May run out.
  std::optional<carved_extent> carve(std::uint64_t bytes, std::uint64_t alignment, search mode,
                                     address_zone zone = address_zone::large);
  extent *commit(const carved_extent &e);  // the missing pages are mapped: returns the live extent
  void abandon(const carved_extent &e);    // they are not: undoes carve

  // Takes up to `pages` whole pages out of free extents, from the lowest address of each zone up.
  // Appends the unmapping extents to `out`, and returns the number of pages. May run out.
  std::size_t take_pages(std::size_t pages, std::vector<extent *> &out);
  // Pages that lie in one free extent become unmapping. Needs two splits: see expect_recalls.
  extent *set_aside(virtual_range free, extent *hint = nullptr);  // the hint: see at()
  void put_back(extent *unmapping);                               // it is free again
  void unmapped(extent *unmapping);  // its mapping is undone: it is uncommitted

  // The pages of `unmapping` stay mapped there, and are mapped and used at `to`, in `there`, as well:
  // the extent becomes aliased. Requires: expect_aliases of that many pages.
  void expect_aliases(std::size_t pages) { pages_.expect_shared(pages); }  // may run out
  void add_alias(extent *unmapping, std::uint64_t to, extent_map &there);
  // They do not stay mapped there; their aliases are aliases of `to` from now on.
  void move_away(const extent &unmapping, std::uint64_t to, extent_map &there);
  void leave(const extent &unmapping);  // they belong to no map any more
  std::uint64_t owner_of(std::uint64_t alias) const {
    return (*pages_.shared_from(alias))->owner.load(std::memory_order_relaxed);
  }
  struct run {
    std::uint64_t owner = 0;
    std::size_t pages = 0;
  };
  // The longest run of at most `n` pages from `alias` on, within one aliased extent, whose owners
  // have consecutive addresses in one reservation of `there`. It ends before a page that the search
  // numbered `visit` has visited.
  run next_run(std::uint64_t alias, std::size_t n, std::uint64_t visit, const extent_map &there);
  // The `n` pages from `alias` on become free there, and aliased at their owner's address.
  // Requires: they lie in one aliased extent, and are free and consecutive at their owner's. After
  // expect_recalls, so many recalls and place_at need no host memory.
  void expect_recalls(std::size_t recalls) {
    reserve_splits(splits_of_recall * recalls + 2);
  }  // may run out
  // Returns the free extent that the first page is part of now. The hints: see at().
  extent *recall(std::uint64_t alias, std::size_t n, extent *alias_hint = nullptr,
                 extent *owner_hint = nullptr);
  // The same where the pages were set aside at their owners' addresses, which are in `there`.
  extent *recall_from(extent_map &there, extent *unmapping, std::uint64_t alias,
                      extent *alias_hint = nullptr);
  bool has_aliases_of(const extent_map &other) const;
  // All aliased extents become unmapping; appends them to `out`. May run out.
  void drop_aliases(std::vector<extent *> &out);
  // Returns a live extent of exactly that range, which begins in `first`. Requires: the range
  // consists of free extents and detached cached ones. Parts of the latter outside of the range
  // become free. May run out.
  extent *place_at(extent *first, std::uint64_t begin, std::uint64_t bytes);

  // The first invariant that does not hold; empty: all hold. `growing`: a carved extent is neither
  // committed nor abandoned. For tests.
  std::string find_inconsistency(bool growing = false) const;

 private:
  static constexpr std::size_t splits_of_recall = 4;  // two extents, each at both ends

  std::uint64_t alignment_of(std::uint64_t bytes, std::uint64_t asked) const;
  extent *best_fit(std::uint64_t bytes, std::uint64_t alignment, address_zone zone) const;
  std::optional<carved_extent> fit(const extent &uncommitted, std::uint64_t bytes,
                                   std::uint64_t alignment) const;
};

}  // namespace stillmap
