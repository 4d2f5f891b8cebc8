// Which addresses of an arena are handed out, free with pages behind them, or without: placement,
// and the choice of where pages are missing least. Pure bookkeeping: no driver, no lock, no page.
// docs/design.md#the-caching-allocator
//
// Neighbouring blocks share boundary pages: blocks are placed at granules, only what is unbacked or
// leaving is made of whole pages. A page is backed when any part of it is free or live.
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
  struct extent {
    segment *busy = nullptr;
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

  // Addresses to place in, of whole pages; `backed`: they have pages already.
  void add(virtual_range range, bool backed = false);
  // Undoes an add of which nothing is live or leaving. False: something is.
  bool remove(virtual_range range);

  // A live segment of `bytes` at a multiple of `alignment` (a power of two), from what is free and
  // backed; nullptr where nothing fits (as far as a quick search sees).
  segment *place(std::uint64_t bytes, std::uint64_t alignment = allocation_granule,
                 search how = search::quick);
  segment *release(segment *live);  // returns the free segment that it is part of now

  // Sets aside the place that needs fewest new pages. Requires: place() found none.
  std::optional<extent> carve(std::uint64_t bytes, std::uint64_t alignment, search how);
  segment *commit(const extent &e);  // the missing pages are there: the live block
  void abandon(const extent &e);     // they are not: as before carve

  // Up to `pages` pages that lie whole in free segments, from the lowest address up: `out` gets
  // leaving segments. Returns how many pages.
  std::size_t take(std::size_t pages, std::vector<segment *> &out);
  void put_back(segment *leaving);  // it stays after all
  void gone(segment *leaving);      // its mapping is undone

  // The same page at two addresses: what was taken stays mapped where it was, and is only lent.
  // `to`: where its pages are mapped too now, in order.
  void lend(segment *leaving, std::uint64_t to);
  std::uint64_t owner_of(std::uint64_t lent) const {
    return pages_.shared(*pages_.shared_from(lent)).owner;
  }
  struct run {
    std::uint64_t owner = 0;
    std::size_t pages = 0;
  };
  // Of `n` pages from `lent` on, in one lent segment: how many are at addresses that follow each
  // other too. It ends before a page that the same asker was told of already, at another address.
  run next_run(std::uint64_t lent, std::size_t n, std::uint64_t asker);
  // `n` pages from `lent` on are free here now, and lent there. Requires: they are in one lent
  // segment, and free where they are, one after the other.
  void recall(std::uint64_t lent, std::size_t n);
  // All that is lent leaves: `out` gets leaving segments.
  void forget_lent(std::vector<segment *> &out);
  std::size_t lent_bytes() const { return lent_; }

  segment *at(std::uint64_t address) const { return pages_.at(address); }
  // A live segment at this very place, which begins in `first`. What lies there is free, or live
  // and nobody's: what of the latter lies outside the place is free then.
  segment *place_at(segment *first, std::uint64_t begin, std::uint64_t bytes);

  std::size_t page_bytes() const { return page_; }
  std::size_t backed_bytes() const { return backed_; }
  std::size_t free_bytes() const { return free_; }
  std::size_t free_pages() const { return whole_pages_; }
  std::size_t reserved_bytes() const { return reserved_; }
  std::size_t host_bytes() const {
    return store_.bytes() + pages_.host_bytes() + free_rows_.host_bytes();
  }

  // In address order within each reservation.
  template <class Use>
  void each(Use use) {
    for (segment *first : firsts_) {
      for (segment *s = first; s != nullptr; s = s->next) use(*s);
    }
  }
  template <class Use>
  void each(Use use) const {
    for (const segment *first : firsts_) {
      for (const segment *s = first; s != nullptr; s = s->next) use(*s);
    }
  }
  // What contradicts itself; empty: nothing. `growing`: a carved extent is neither committed nor
  // abandoned, so that some of what is set aside has no pages. For tests.
  std::string contradiction(bool growing = false) const;

 private:
  using index = tlsf_index<segment, &segment::by_size>;

  // A page is a power of two, and these are asked all the time.
  std::uint64_t floor(std::uint64_t at) const { return at & ~(page_ - 1); }
  std::uint64_t ceil(std::uint64_t at) const { return floor(at + page_ - 1); }
  std::size_t whole_pages(std::uint64_t from, std::uint64_t to) const {
    const std::uint64_t first = ceil(from), last = floor(to);
    return last > first ? static_cast<std::size_t>((last - first) >> page_bits_) : 0;
  }
  std::size_t whole_pages(const segment &s) const { return whole_pages(s.begin, s.end()); }
  std::uint64_t key(const segment &unbacked) const;
  static bool is(const segment *s, segment_state state) {
    return s != nullptr && s->state == state;
  }
  segment *split(segment *s, std::uint64_t at);
  void swallow_next(segment *s);
  void enter(segment *s);
  void lift(segment *s);
  void rekey(segment *s);
  segment *settle(segment *s, segment_state state);
  std::uint64_t alignment_of(std::uint64_t bytes, std::uint64_t asked) const;
  segment *best_place(std::uint64_t bytes, std::uint64_t alignment, search how) const;
  std::optional<extent> fit(const segment &unbacked, std::uint64_t bytes,
                            std::uint64_t alignment) const;

  const std::size_t page_;
  const unsigned page_bits_;
  segment_store store_;
  free_bins free_rows_;
  index unbacked_index_;  // by own size and that of free neighbours
  std::vector<segment *> firsts_;
  page_map pages_;
  std::size_t lent_ = 0;
  std::size_t reserved_ = 0, backed_ = 0, free_ = 0, whole_pages_ = 0;
};

}  // namespace stillmap
