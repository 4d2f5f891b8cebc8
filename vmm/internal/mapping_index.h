// The entries of a ledger, by address: a page table in place of a search tree, so that entering a page,
// finding its neighbours and removing it take a few instructions each. docs/pages.md#the-ledger
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "stillmap/vmm/base/driver_types.h"
#include "stillmap/vmm/base/linked_list.h"
#include "stillmap/vmm/page.h"

namespace stillmap {

class address_block;

// Why a range cannot be shared, moved or read.
inline constexpr const char *suspended_reason = "memory in the range is suspended: resume it first",
                            *released_reason =
                                "memory in the range was released (its contents were forgotten, or "
                                "went to another process): commit maps new pages";

// A mapping, or a suspended place, with room for its own retirement: retiring takes no memory.
struct mapping_entry {
  virtual_range range;
  ledger_page_ptr backing;
  std::shared_ptr<const std::vector<access_grant>> access;
  std::uint64_t suspended_by = 0;  // not 0: no page, and nothing is mapped
  address_block *suspended_in = nullptr;
  bool retiring = false;
  bool lost = false;                     // unmapped, and the undo failed: for its removal
  bool first_of_block = false;           // for its removal
  std::uint64_t retired = 0;             // when; 0: a thread is unmapping it. While retiring:
  std::shared_ptr<address_block> block;  // keeps the addresses
  fence idle;
  list_links<mapping_entry> links;  // in a ledger's list of retiring ones, or in a removal

  // As a new one, but for `links`: member by member, because most hold nothing.
  void clear() {
    backing = ledger_page_ptr();
    access.reset();
    suspended_by = 0;
    suspended_in = nullptr;
    retiring = lost = first_of_block = false;
    retired = 0;
    block.reset();
    if (!idle.trivially_passed()) idle = fence();
  }
};
using mapping_list = linked_list<mapping_entry, &mapping_entry::links>;

// Owns its entries, of which no two begin in the same page. Pointers returned are nullptr where there is
// no such entry. Only expect() needs host memory.
// Threads: externally synchronised.
class mapping_index {
 public:
  // All entries begin at multiples of `page_bytes`.
  explicit mapping_index(std::size_t page_bytes)
      : shift_(static_cast<unsigned>(std::bit_width(std::max<std::size_t>(page_bytes, 4096)) - 1)) {
  }
  mapping_index(const mapping_index &) = delete;
  ~mapping_index() {
    while (mapping_entry *const e = first()) remove(*e);
  }

  std::size_t size() const { return size_; }
  mapping_entry *first() const { return first_from(tables_.begin(), 0, 0); }
  mapping_entry *find(device_address at) const {  // begins there
    mapping_entry *const e = from(at);
    return e != nullptr && e->range.begin == at ? e : nullptr;
  }
  // The first that begins at `at` or after.
  mapping_entry *from(device_address at) const {
    const std::uint64_t n = number(at);
    mapping_entry *const e = first_from(table_from(n / entries), n % entries, n / entries);
    return e != nullptr && e->range.begin < at ? after(*e) : e;
  }
  // The last that begins before `at`.
  mapping_entry *before(device_address at) const {
    const std::uint64_t n = number(at);
    auto it = table_from(n / entries);
    if (it != tables_.end() && it->first == n / entries) {
      if (mapping_entry *const e = it->second.last_until(n % entries)) {
        if (e->range.begin < at) return e;
        if (mapping_entry *const other = it->second.last_before(number(e->range.begin) % entries)) {
          return other;
        }
      }
    }
    while (it != tables_.begin()) {
      --it;
      if (mapping_entry *const e = it->second.last_until(entries - 1)) return e;
    }
    return nullptr;
  }
  mapping_entry *after(const mapping_entry &e) const {
    const std::uint64_t n = number(e.range.begin) + 1;
    return first_from(table_from(n / entries), n % entries, n / entries);
  }

  // Afterwards an entry that begins at `at` can be inserted, until trim() is told otherwise. May run out
  // of host memory, and then changes nothing.
  void expect(device_address at) {
    const std::uint64_t n = number(at) / entries;
    if (expected_ == tables_.end() || expected_->first != n) {
      expected_ = tables_.try_emplace(n).first;
    }
  }
  // Requires: expect().
  mapping_entry &insert(std::unique_ptr<mapping_entry> e) {
    const std::uint64_t n = number(e->range.begin);
    ++size_;
    return table_from(n / entries)->second.set(n % entries, *e.release());
  }
  std::unique_ptr<mapping_entry> remove(mapping_entry &e) {
    const std::uint64_t n = number(e.range.begin);
    --size_;
    table_from(n / entries)->second.clear(n % entries);
    return std::unique_ptr<mapping_entry>(&e);
  }
  // Nothing in `range` is expected any more.
  void trim(virtual_range range) {
    const std::uint64_t first = (number(range.begin) + entries - 1) / entries;
    const std::uint64_t end = number(range.end()) / entries;
    if (first >= end) return;
    last_ = expected_ = tables_.end();
    for (auto it = tables_.lower_bound(first); it != tables_.end() && it->first < end;) {
      it = it->second.empty() ? tables_.erase(it) : std::next(it);
    }
  }

 private:
  static constexpr std::size_t entries = 512, bits = 64;

  class table {
   public:
    bool empty() const {
      return std::all_of(marks_.begin(), marks_.end(), [](std::uint64_t w) { return w == 0; });
    }
    mapping_entry &set(std::size_t i, mapping_entry &e) {
      at_[i] = &e;
      marks_[i / bits] |= std::uint64_t{1} << i % bits;
      return e;
    }
    void clear(std::size_t i) { marks_[i / bits] &= ~(std::uint64_t{1} << i % bits); }
    mapping_entry *first_from(std::size_t i) const {
      std::size_t w = i / bits;
      std::uint64_t word = marks_[w] & ~std::uint64_t{0} << i % bits;
      while (word == 0) {
        if (++w == marks_.size()) return nullptr;
        word = marks_[w];
      }
      return at_[w * bits + static_cast<std::size_t>(std::countr_zero(word))];
    }
    mapping_entry *last_until(std::size_t i) const {
      std::size_t w = i / bits;
      std::uint64_t word = marks_[w] & ~std::uint64_t{0} >> (bits - 1 - i % bits);
      while (word == 0) {
        if (w-- == 0) return nullptr;
        word = marks_[w];
      }
      return at_[w * bits + bits - 1 - static_cast<std::size_t>(std::countl_zero(word))];
    }
    mapping_entry *last_before(std::size_t i) const { return i == 0 ? nullptr : last_until(i - 1); }

   private:
    std::array<std::uint64_t, entries / bits> marks_{};  // which of at_ are set
    std::array<mapping_entry *, entries> at_;
  };
  using table_map = std::map<std::uint64_t, table>;

  std::uint64_t number(device_address at) const { return at.value() >> shift_; }
  // The table with that number, or the next one.
  table_map::iterator table_from(std::uint64_t n) const {
    if (last_ != tables_.end() && last_->first == n) return last_;
    const auto found = tables_.lower_bound(n);
    if (found != tables_.end() && found->first == n) last_ = found;
    return found;
  }
  // The first entry from the one with number `i` in table `n` on. `it`: that table or the next one.
  mapping_entry *first_from(table_map::iterator it, std::size_t i, std::uint64_t n) const {
    if (it != tables_.end() && it->first == n) {
      if (mapping_entry *const e = it->second.first_from(i)) return e;
      ++it;
    }
    for (; it != tables_.end(); ++it) {
      if (mapping_entry *const e = it->second.first_from(0)) return e;
    }
    return nullptr;
  }

  const unsigned shift_;
  mutable table_map tables_;
  // The tables that were asked for and expected last.
  mutable table_map::iterator last_ = tables_.end();
  table_map::iterator expected_ = tables_.end();
  std::size_t size_ = 0;
};

}  // namespace stillmap
