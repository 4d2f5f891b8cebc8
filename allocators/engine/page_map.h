// Maps a page of addresses to the extents in it, and to the other addresses of the same physical
// page. Pure bookkeeping. docs/allocator_growth.md#aliased-addresses
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "stillmap/allocators/engine/extent.h"
#include "stillmap/allocators/engine/shared_pages.h"

namespace stillmap {

// The pages of one reservation.
struct reservation_pages {
  std::uint64_t begin = 0;
  std::size_t pages = 0;
  std::vector<extent *> starts;       // the first extent that begins in each page
  std::vector<std::uint64_t> marks;   // bitmap of the pages in which an extent begins
  std::vector<shared_page *> shared;  // mapped at each page; nullptr: none
};

// Threads: externally synchronised.
class page_map {
 public:
  page_map(std::size_t page_bytes, std::shared_ptr<shared_pages> shared)
      : shift_(static_cast<unsigned>(std::countr_zero(page_bytes))), shared_(std::move(shared)) {}

  // May run out of host memory, and then changes nothing. Returns extent::in for the range.
  reservation_pages *add(virtual_range range) {
    auto made = std::make_unique<reservation_pages>();
    made->begin = range.begin.value();
    made->pages = range.bytes >> shift_;
    made->starts.resize(made->pages);
    made->marks.resize(made->pages / 64 + 1);
    made->shared.resize(made->pages);
    const auto after = std::find_if(reservations_.begin(), reservations_.end(),
                                    [&](const auto &other) { return other->begin > made->begin; });
    return reservations_.insert(after, std::move(made))->get();
  }
  void remove(virtual_range range) {
    std::erase_if(reservations_, [&](const auto &s) { return s->begin == range.begin.value(); });
  }

  void extent_began(extent *s) {
    reservation_pages &in = *s->in;
    const std::size_t p = (s->begin - in.begin) >> shift_;
    if (in.starts[p] != nullptr && in.starts[p]->begin <= s->begin) return;
    in.starts[p] = s;
    in.marks[p / 64] |= std::uint64_t{1} << (p % 64);
  }
  // Call it while the neighbours of the extent are still linked.
  void extent_ended(const extent *s) {
    reservation_pages &in = *s->in;
    const std::size_t p = (s->begin - in.begin) >> shift_;
    if (in.starts[p] != s) return;
    extent *const next = s->next;
    if (next != nullptr && (next->begin - in.begin) >> shift_ == p) {
      in.starts[p] = next;
      return;
    }
    in.starts[p] = nullptr;
    in.marks[p / 64] &= ~(std::uint64_t{1} << (p % 64));
  }

  // The extent that contains the address. Requires: the address is in a range that was added.
  extent *at(std::uint64_t address) const {
    const reservation_pages &in = of(address);
    const std::size_t p = (address - in.begin) >> shift_;
    std::size_t word = p / 64;
    std::uint64_t bits = in.marks[word] & (~std::uint64_t{0} >> (63 - p % 64));
    while (bits == 0) bits = in.marks[--word];
    extent *s = in.starts[word * 64 + 63 - static_cast<std::size_t>(std::countl_zero(bits))];
    if (s->begin > address) return s->previous;
    while (s->end() <= address) s = s->next;
    return s;
  }

  // The shared pages mapped at an address and after it, in the same reservation. nullptr: the page is
  // mapped at one address only.
  shared_page *const *shared_from(std::uint64_t page_address) const {
    const reservation_pages &in = of(page_address);
    return &in.shared[(page_address - in.begin) >> shift_];
  }
  // The end of the reservation that contains the address; 0: none does.
  std::uint64_t end_of_reservation(std::uint64_t address) const {
    if (reservations_.empty()) return 0;
    const reservation_pages &in = of(address);
    const std::uint64_t bytes = in.pages << shift_;
    return address - in.begin < bytes ? in.begin + bytes : 0;
  }
  // Afterwards `n` more pages can be shared without host memory.
  void expect_shared(std::size_t n) { shared_->expect(n); }
  // The page mapped at `alias` is mapped at `owner`, an address of `there`, too from now on, and used
  // there.
  void share(std::uint64_t alias, std::uint64_t owner, page_map &there) {
    shared_page *&page = shared_at(alias);
    if (page == nullptr) {
      page = shared_->take();
      page->mappings = 1;
    }
    page->owner.store(owner, std::memory_order_relaxed);
    ++page->mappings;
    there.shared_at(owner) = page;
  }
  // The page in use at `owner` is mapped and used at `to`, an address of `there`, instead.
  void move(std::uint64_t owner, std::uint64_t to, page_map &there) {
    shared_page *const page = std::exchange(shared_at(owner), nullptr);
    if (page == nullptr) return;
    page->owner.store(to, std::memory_order_relaxed);
    there.shared_at(to) = page;
  }
  // The page is no longer mapped here. If one address is left, in this map, it is not shared.
  void unshare(std::uint64_t alias) {
    shared_page *const page = std::exchange(shared_at(alias), nullptr);
    if (page == nullptr) return;
    if (--page->mappings > 1) return;
    const std::uint64_t owner = page->owner.load(std::memory_order_relaxed);
    if (page->mappings == 1) {
      if (owner == alias || end_of_reservation(owner) == 0) return;
      shared_at(owner) = nullptr;
    }
    shared_->give_back(*page);
  }
  std::size_t host_bytes() const {
    std::size_t sum = 0;
    for (const auto &s : reservations_) {
      sum += s->pages * (sizeof(extent *) + sizeof(shared_page *)) + s->pages / 8;
    }
    return sum;
  }

 private:
  const reservation_pages &of(std::uint64_t address) const {
    const std::unique_ptr<reservation_pages> *found = reservations_.data();
    if (address - (*found)->begin < (*found)->pages << shift_) return **found;
    // The last one that begins at or below the address.
    for (std::size_t n = reservations_.size(); n > 1;) {
      const std::size_t half = n / 2;
      found += found[half]->begin <= address ? half : 0;
      n -= half;
    }
    return **found;
  }
  reservation_pages &of(std::uint64_t address) {
    return const_cast<reservation_pages &>(static_cast<const page_map &>(*this).of(address));
  }
  shared_page *&shared_at(std::uint64_t page_address) {
    return const_cast<shared_page *&>(*shared_from(page_address));
  }

  const unsigned shift_;
  std::vector<std::unique_ptr<reservation_pages>> reservations_;  // ordered by address
  const std::shared_ptr<shared_pages> shared_;
};

}  // namespace stillmap
