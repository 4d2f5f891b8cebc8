// Maps an address to the arena that owns it: a radix tree whose tables are never freed and whose
// entries are atomic words, changed in place. A leaf table covers 8 GiB of addresses; a range that
// covers them all needs none. Internal.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "stillmap/vmm/base/units.h"

namespace stillmap {

class arena;

// Threads: lookups are safe and take no lock; changes are externally synchronised. For an address
// that belongs to no arena any more, a concurrent lookup may return its former or its next owner.
class address_directory {
 public:
  static constexpr std::size_t unit = std::size_t{2} << 20;  // alignment of ranges, in bytes
  static constexpr unsigned address_bits = 57;  // the virtual address width that CUDA supports

  arena *at(std::uint64_t address) const {
    if (address >> address_bits != 0) return nullptr;
    const middle_table *const middle =
        root_.at[address >> middle_bits].load(std::memory_order_acquire);
    if (middle == nullptr) return nullptr;
    const std::uintptr_t entry =
        middle->at[address >> leaf_bits & mask].load(std::memory_order_acquire);
    if (entry == 0 || (entry & whole) != 0) return reinterpret_cast<arena *>(entry & ~whole);
    return reinterpret_cast<const leaf_table *>(entry)->at[address >> unit_bits & mask].load(
        std::memory_order_acquire);
  }

  // Makes the tables for a range. May run out of host memory; then the range can be expected again.
  void expect(virtual_range range) {
    each_entry(range,
               [&](std::uint64_t at, bool all) { all ? void(middle_of(at)) : void(leaf_of(at)); });
  }
  // From now on the range belongs to `a`. Requires: it was expected, and belongs to no arena.
  void add(virtual_range range, arena *a) noexcept { set(range, a); }
  // Requires: the range was added.
  void remove(virtual_range range) noexcept { set(range, nullptr); }

 private:
  static constexpr unsigned unit_bits = 21, table_bits = 12;
  static constexpr unsigned leaf_bits = unit_bits + table_bits;
  static constexpr unsigned middle_bits = leaf_bits + table_bits;
  static_assert(middle_bits + table_bits == address_bits);
  static constexpr std::uint64_t mask = (1u << table_bits) - 1;
  static constexpr std::uintptr_t whole = 1;  // in an entry: the arena owns all its addresses

  template <class Entry>
  struct table {
    std::atomic<Entry> at[std::size_t{1} << table_bits]{};
  };
  using leaf_table = table<arena *>;
  using middle_table = table<std::uintptr_t>;  // a leaf table, or an arena and `whole`
  using root_table = table<middle_table *>;

  // Calls act(address, whether the range covers the whole entry) for each entry of the middle
  // tables that the range overlaps.
  template <class Act>
  static void each_entry(virtual_range range, Act act) {
    constexpr std::uint64_t span = std::uint64_t{1} << leaf_bits;
    const std::uint64_t end = range.end().value();
    for (std::uint64_t at = range.begin.value(); at < end; at = (at & ~(span - 1)) + span) {
      act(at, at % span == 0 && end - at >= span);
    }
  }
  void set(virtual_range range, arena *a) {
    const std::uint64_t end = range.end().value();
    each_entry(range, [&](std::uint64_t at, bool all) {
      std::atomic<std::uintptr_t> &entry = middle_of(at).at[at >> leaf_bits & mask];
      const std::uintptr_t now = entry.load(std::memory_order_relaxed);
      if (all && (now == 0 || (now & whole) != 0)) {
        const auto owner = reinterpret_cast<std::uintptr_t>(a);
        entry.store(a == nullptr ? 0 : owner | whole, std::memory_order_release);
        return;
      }
      leaf_table &leaf = leaf_of(at);
      do {
        leaf.at[at >> unit_bits & mask].store(a, std::memory_order_release);
        at += unit;
      } while (at < end && (at >> unit_bits & mask) != 0);
    });
  }
  middle_table &middle_of(std::uint64_t address) {
    std::atomic<middle_table *> &entry = root_.at[address >> middle_bits & mask];
    if (middle_table *const there = entry.load(std::memory_order_relaxed)) return *there;
    middles_.push_back(std::make_unique<middle_table>());
    entry.store(middles_.back().get(), std::memory_order_release);
    return *middles_.back();
  }
  leaf_table &leaf_of(std::uint64_t address) {
    std::atomic<std::uintptr_t> &entry = middle_of(address).at[address >> leaf_bits & mask];
    if (const std::uintptr_t there = entry.load(std::memory_order_relaxed)) {
      return *reinterpret_cast<leaf_table *>(there);
    }
    leaves_.push_back(std::make_unique<leaf_table>());
    entry.store(reinterpret_cast<std::uintptr_t>(leaves_.back().get()), std::memory_order_release);
    return *leaves_.back();
  }

  root_table root_;  // within the object: each free reads it
  std::vector<std::unique_ptr<middle_table>> middles_;
  std::vector<std::unique_ptr<leaf_table>> leaves_;
};

}  // namespace stillmap
