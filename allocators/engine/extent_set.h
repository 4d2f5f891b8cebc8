// The extents of an arena's addresses: split and merged, each in one state, free and uncommitted ones indexed by size.
// Which of them is used for what, extent_map decides. Pure bookkeeping. Internal.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "stillmap/allocators/engine/extent.h"
#include "stillmap/allocators/engine/page_map.h"
#include "stillmap/allocators/engine/tlsf_index.h"
#include "stillmap/vmm/base/units.h"

namespace stillmap {

// Threads: externally synchronised. Functions that say so may run out of host memory, and then change nothing. The
// others need none.
class extent_set {
 public:
  // Requires: page_bytes is a power of two. `pages_move`: a block of whole pages begins at a page.
  // `shared`: of all maps between which pages move.
  explicit extent_set(std::size_t page_bytes, bool pages_move = true,
                      std::shared_ptr<shared_pages> shared = std::make_shared<shared_pages>())
      : pages_move_(pages_move),
        page_(page_bytes),
        page_bits_(static_cast<unsigned>(std::countr_zero(page_bytes))),
        pages_(page_bytes, std::move(shared)) {}
  extent_set(const extent_set &) = delete;

  // Adds a range of whole pages. `committed`: pages are mapped there already. May run out. The next extent_map::place
  // then needs no host memory.
  void add(virtual_range range, bool committed = false, address_zone zone = address_zone::large);
  // Removes a range that was added. False: part of it is live, unmapping or aliased.
  bool remove(virtual_range range);

  // The extent at an address. `hint`: one that was there. Usually it still is, or its neighbour is
  // since it was split. One that was recycled is empty.
  extent *at(std::uint64_t address, extent *hint = nullptr) const {
    if (hint == nullptr) return pages_.at(address);
    if (hint->contains(address)) return hint;
    extent *const next = hint->next;
    return next != nullptr && next->contains(address) ? next : pages_.at(address);
  }
  // Whether the address is in a range that was added; otherwise it is that of another arena.
  bool contains(std::uint64_t address) const { return pages_.end_of_reservation(address) != 0; }

  std::size_t page_bytes() const { return page_; }
  std::size_t committed_bytes() const { return committed_; }
  std::size_t aliased_bytes() const { return aliased_; }
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

 protected:
  ~extent_set() = default;
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
