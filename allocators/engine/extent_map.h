// The extents of an arena's addresses: placement of blocks, and the choice of addresses that lack
// the fewest pages. Pure bookkeeping: no driver, no lock, no page.
// docs/allocator_placement.md
//
// Blocks are placed at granules, so neighbours may share a page. Uncommitted, unmapping and aliased
// extents consist of whole pages. A page is committed if any part of it is free or live.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stillmap/allocators/engine/extent.h"
#include "stillmap/allocators/engine/page_map.h"

namespace stillmap {

class extent_map {
 public:
  // Addresses for a block that still lack pages. `node` is the extent that was set aside.
  struct carved_extent {
    extent *node = nullptr;
    std::uint64_t begin = 0;  // of the block
    std::uint64_t bytes = 0;
    virtual_range missing;  // whole pages to be mapped, within node
  };
  enum class search { quick, thorough };  // among a bounded number of uncommitted extents, or all

  // Requires: page_bytes is a power of two. `pages_move`: a block of whole pages begins at a page.
  // `shared`: of all maps between which pages move.
  explicit extent_map(std::size_t page_bytes, bool pages_move = true,
                      std::shared_ptr<shared_pages> shared = std::make_shared<shared_pages>())
      : pages_move_(pages_move),
        page_(page_bytes),
        page_bits_(static_cast<unsigned>(std::countr_zero(page_bytes))),
        pages_(page_bytes, std::move(shared)) {}
  extent_map(const extent_map &) = delete;

  // Functions that say so may run out of host memory, and then change nothing. The others need none.

  // Adds a range of whole pages. `committed`: pages are mapped there already. May run out.
  void add(virtual_range range, bool committed = false, address_zone zone = address_zone::large);
  // Removes a range that was added. False: part of it is live, unmapping or aliased.
  bool remove(virtual_range range);

  // Returns a live extent of `bytes` at a multiple of `alignment` (a power of two), from free
  // memory of a zone; nullptr where the search finds none. May run out.
  extent *place(std::uint64_t bytes, std::uint64_t alignment = allocation_granule,
                address_zone zone = address_zone::large);
  extent *release(extent *live);  // returns the free extent that it is part of now

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
  // Whether the pages are used in this map; otherwise it is that of another arena.
  bool contains(std::uint64_t address) const { return pages_.end_of_reservation(address) != 0; }
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
  void expect_recalls(std::size_t recalls) { reserve_splits(4 * recalls + 2); }  // may run out
  // Returns the free extent that the first page is part of now. The hints: see at().
  extent *recall(std::uint64_t alias, std::size_t n, extent *alias_hint = nullptr,
                 extent *owner_hint = nullptr);
  // The same where the pages were set aside at their owners' addresses, which are in `there`.
  extent *recall_from(extent_map &there, extent *unmapping, std::uint64_t alias,
                      extent *alias_hint = nullptr);
  bool has_aliases_of(const extent_map &other) const;
  // All aliased extents become unmapping; appends them to `out`. May run out.
  void drop_aliases(std::vector<extent *> &out);
  std::size_t aliased_bytes() const { return aliased_; }

  // The extent at an address. `hint`: one that was there. Usually it still is, or its neighbour is
  // since it was split. One that was recycled is empty.
  extent *at(std::uint64_t address, extent *hint = nullptr) const {
    if (hint == nullptr) return pages_.at(address);
    if (hint->contains(address)) return hint;
    extent *const next = hint->next;
    return next != nullptr && next->contains(address) ? next : pages_.at(address);
  }
  // Returns a live extent of exactly that range, which begins in `first`. Requires: the range
  // consists of free extents and detached cached ones. Parts of the latter outside of the range
  // become free. May run out.
  extent *place_at(extent *first, std::uint64_t begin, std::uint64_t bytes);

  std::size_t page_bytes() const { return page_; }
  std::size_t committed_bytes() const { return committed_; }
  std::size_t free_bytes() const { return free_; }
  // Whole pages of free extents. Of a map that is not const in constant time, but for what became free
  // since the last search.
  std::size_t free_pages() const;
  std::size_t free_pages();
  std::size_t reserved_bytes(address_zone zone) const { return reserved_[number(zone)]; }
  std::size_t reserved_bytes() const { return reserved_[0] + reserved_[1]; }
  std::size_t host_bytes() const { return store_.bytes() + pages_.host_bytes(); }

  // Calls use(range) for each range that was added.
  template <class Use>
  void each_reservation(Use use) const {
    for (const extent *first : first_extents_) {
      const extent *last = first;
      while (last->next != nullptr) last = last->next;
      use(virtual_range{device_address(first->begin),
                        static_cast<std::size_t>(last->end() - first->begin)});
    }
  }
  // In address order within each reservation.
  template <class Use>
  void each(Use use) {
    for (extent *first : first_extents_) {
      for (extent *s = first; s != nullptr; s = s->next) use(*s);
    }
  }
  template <class Use>
  void each(Use use) const {
    for (const extent *first : first_extents_) {
      for (const extent *s = first; s != nullptr; s = s->next) use(*s);
    }
  }
  // The first invariant that does not hold; empty: all hold. `growing`: a carved extent is neither
  // committed nor abandoned. For tests.
  std::string find_inconsistency(bool growing = false) const;

 private:
  using index = tlsf_index<extent, &extent::by_size>;
  static constexpr std::size_t zones = 2;
  static constexpr std::size_t number(address_zone zone) { return static_cast<std::size_t>(zone); }

  // A page is a power of two, so these need no division.
  std::uint64_t floor(std::uint64_t at) const { return at & ~(page_ - 1); }
  std::uint64_t ceil(std::uint64_t at) const { return floor(at + page_ - 1); }
  std::size_t whole_pages(std::uint64_t from, std::uint64_t to) const {
    const std::uint64_t first = ceil(from), last = floor(to);
    return static_cast<std::size_t>((std::max(first, last) - first) >> page_bits_);
  }
  std::size_t whole_pages(const extent &s) const { return whole_pages(s.begin, s.end()); }
  std::uint64_t key(const extent &uncommitted) const;
  static bool is(const extent *s, extent_state state) { return s != nullptr && s->state == state; }
  // Afterwards `n` splits need no host memory; nor does what becomes of a carved extent, which may
  // be at any time.
  void reserve_splits(std::size_t n) { store_.reserve(n + splits_of_carved); }
  extent *split(extent *s, std::uint64_t at);
  void merge_next(extent *s);
  void add_to_index(extent *s);
  [[gnu::noinline]] void add_uncommitted(extent &s);
  void remove_from_index(extent *s);
  [[gnu::noinline]] void remove_sorted(extent &s);
  // `s` has become free, or is free no longer: uncommitted neighbours are indexed by its size too. They
  // are rare.
  void rekey_neighbours(extent &s) {
    if (is(s.previous, extent_state::uncommitted) || is(s.next, extent_state::uncommitted))
        [[unlikely]]
      rekey_uncommitted_neighbours(s);
  }
  [[gnu::noinline]] void rekey_uncommitted_neighbours(extent &s);
  void sort_free(address_zone zone);
  extent *set_state(extent *s, extent_state state);
  std::uint64_t alignment_of(std::uint64_t bytes, std::uint64_t asked) const;
  extent *best_fit(std::uint64_t bytes, std::uint64_t alignment, address_zone zone) const;
  std::optional<carved_extent> fit(const extent &uncommitted, std::uint64_t bytes,
                                   std::uint64_t alignment) const;

  static constexpr std::size_t splits_of_carved = 2;
  const bool pages_move_;
  const std::size_t page_;
  const unsigned page_bits_;
  extent_store store_;
  // Of each zone.
  std::array<index, zones> free_index_;         // by size; sorted only where it is searched
  std::array<index, zones> uncommitted_index_;  // by own size plus that of free neighbours
  std::array<std::size_t, zones> reserved_{};
  std::vector<extent *> first_extents_;
  page_map pages_;
  std::size_t aliased_ = 0;
  std::size_t committed_ = 0, free_ = 0;
  std::size_t whole_pages_ = 0;  // of the sorted free extents
};

}  // namespace stillmap
