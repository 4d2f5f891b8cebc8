// Which addresses of an arena are handed out, free with pages behind them, or without: placement,
// and the choice of where pages are missing least. Pure bookkeeping: no driver, no lock, no page.
// docs/allocator.md#the-caching-allocator
//
// Neighbouring blocks share boundary pages: blocks are placed at granules, only what is uncommitted or
// unmapping is made of whole pages. A page is committed when any part of it is free or live.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stillmap/allocators/internal/extent.h"
#include "stillmap/allocators/internal/free_bins.h"
#include "stillmap/allocators/internal/page_map.h"

namespace stillmap {

class extent_map {
 public:
  // A place that still lacks pages: `busy` is set aside for it.
  struct carved_extent {
    extent *node = nullptr;
    std::uint64_t begin = 0;  // where the block will be
    std::uint64_t bytes = 0;
    virtual_range missing;  // whole pages to be mapped; within busy
  };
  enum class search { quick, thorough };  // the best of a few places, or of all

  // Requires: a power of two.
  explicit extent_map(std::size_t page_bytes)
      : page_(page_bytes),
        page_bits_(static_cast<unsigned>(std::countr_zero(page_bytes))),
        pages_(page_bytes) {}
  extent_map(const extent_map &) = delete;

  // Addresses to place in, of whole pages; `committed`: they have pages already.
  void add(virtual_range range, bool committed = false);
  // Undoes an add of which nothing is live or unmapping. False: something is.
  bool remove(virtual_range range);

  // A live extent of `bytes` at a multiple of `alignment` (a power of two), from what is free and
  // committed; nullptr where nothing fits (as far as a quick search sees).
  extent *place(std::uint64_t bytes, std::uint64_t alignment = allocation_granule,
                search mode = search::quick);
  extent *release(extent *live);  // returns the free extent that it is part of now

  // Sets aside the place that needs fewest new pages. Requires: place() found none.
  std::optional<carved_extent> carve(std::uint64_t bytes, std::uint64_t alignment, search mode);
  extent *commit(const carved_extent &e);  // the missing pages are there: the live block
  void abandon(const carved_extent &e);    // they are not: as before carve

  // Up to `pages` pages that lie whole in free extents, from the lowest address up: `out` gets
  // unmapping extents. Returns how many pages.
  std::size_t take_pages(std::size_t pages, std::vector<extent *> &out);
  void put_back(extent *unmapping);  // it stays after all
  void unmapped(extent *unmapping);  // its mapping is undone

  // The same page at two addresses: what was taken stays mapped where it was, and is only aliased.
  // `to`: where its pages are mapped too now, in order.
  void add_alias(extent *unmapping, std::uint64_t to);
  std::uint64_t owner_of(std::uint64_t aliased) const {
    return pages_.shared(*pages_.shared_from(aliased)).owner;
  }
  struct run {
    std::uint64_t owner = 0;
    std::size_t pages = 0;
  };
  // Of `n` pages from `aliased` on, in one aliased extent: how many are at addresses that follow each
  // other too. It ends before a page that the same asker was told of already, at another address.
  run next_run(std::uint64_t aliased, std::size_t n, std::uint64_t visit);
  // `n` pages from `aliased` on are free here now, and aliased there. Requires: they are in one aliased
  // extent, and free where they are, one after the other.
  void recall(std::uint64_t aliased, std::size_t n);
  // All that is aliased leaves: `out` gets unmapping extents.
  void drop_aliases(std::vector<extent *> &out);
  std::size_t aliased_bytes() const { return aliased_; }

  extent *at(std::uint64_t address) const { return pages_.at(address); }
  // A live extent at this very place, which begins in `first`. What lies there is free, or live
  // and nobody's: what of the latter lies outside the place is free then.
  extent *place_at(extent *first, std::uint64_t begin, std::uint64_t bytes);

  std::size_t page_bytes() const { return page_; }
  std::size_t committed_bytes() const { return committed_; }
  std::size_t free_bytes() const { return free_; }
  std::size_t free_pages() const { return whole_pages_; }
  std::size_t reserved_bytes() const { return reserved_; }
  std::size_t host_bytes() const {
    return store_.bytes() + pages_.host_bytes() + free_bins_.host_bytes();
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
  // What contradicts itself; empty: nothing. `growing`: a carved extent is neither committed nor
  // abandoned, so that some of what is set aside has no pages. For tests.
  std::string find_inconsistency(bool growing = false) const;

 private:
  using index = tlsf_index<extent, &extent::by_size>;

  // A page is a power of two, and these are asked all the time.
  std::uint64_t floor(std::uint64_t at) const { return at & ~(page_ - 1); }
  std::uint64_t ceil(std::uint64_t at) const { return floor(at + page_ - 1); }
  std::size_t whole_pages(std::uint64_t from, std::uint64_t to) const {
    const std::uint64_t first = ceil(from), last = floor(to);
    return last > first ? static_cast<std::size_t>((last - first) >> page_bits_) : 0;
  }
  std::size_t whole_pages(const extent &s) const { return whole_pages(s.begin, s.end()); }
  std::uint64_t key(const extent &uncommitted) const;
  static bool is(const extent *s, extent_state state) { return s != nullptr && s->state == state; }
  extent *split(extent *s, std::uint64_t at);
  void merge_next(extent *s);
  void add_to_index(extent *s);
  void remove_from_index(extent *s);
  void rekey(extent *s);
  extent *set_state(extent *s, extent_state state);
  std::uint64_t alignment_of(std::uint64_t bytes, std::uint64_t asked) const;
  extent *best_place(std::uint64_t bytes, std::uint64_t alignment, search mode) const;
  std::optional<carved_extent> fit(const extent &uncommitted, std::uint64_t bytes,
                                   std::uint64_t alignment) const;

  const std::size_t page_;
  const unsigned page_bits_;
  extent_store store_;
  free_bins free_bins_;
  index uncommitted_index_;  // by own size and that of free neighbours
  std::vector<extent *> first_extents_;
  page_map pages_;
  std::size_t aliased_ = 0;
  std::size_t reserved_ = 0, committed_ = 0, free_ = 0, whole_pages_ = 0;
};

}  // namespace stillmap
