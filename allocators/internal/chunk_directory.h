// Maps an address to the arena that owns it, for chunks from cuMemAlloc. Chunks come and go all the
// time, unlike reservations, so entries change in place: a radix tree whose tables are never freed
// and whose entries are atomic words. A leaf table covers 8 GiB of addresses.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "stillmap/vmm/units.h"

namespace stillmap {

class arena;

// Threads: lookups are safe and take no lock; changes are externally synchronised. For an address
// that is in no chunk any more, a concurrent lookup may return its former or its next owner.
class chunk_directory {
 public:
  static constexpr std::size_t unit = std::size_t{2} << 20;  // alignment of chunks, in bytes

  arena *at(std::uint64_t address) const {
    const root_table *const root = root_.load(std::memory_order_acquire);
    if (root == nullptr || address >> address_bits != 0) return nullptr;
    const middle_table *const middle =
        (*root).at[address >> (unit_bits + 2 * table_bits)].load(std::memory_order_acquire);
    if (middle == nullptr) return nullptr;
    const leaf_table *const leaf =
        middle->at[address >> (unit_bits + table_bits) & mask].load(std::memory_order_acquire);
    if (leaf == nullptr) return nullptr;
    return leaf->at[address >> unit_bits & mask].load(std::memory_order_acquire);
  }

  // From now on the range belongs to `a`; nullptr: to no arena. Setting an arena may run out of
  // host memory, and then changes nothing; clearing never does.
  void set(virtual_range range, arena *a) {
    const std::uint64_t begin = range.begin.value(), end = range.end().value();
    for (std::uint64_t at = begin; at < end; at += unit) leaf_of(at);
    for (std::uint64_t at = begin; at < end; at += unit) {
      leaf_of(at).at[at >> unit_bits & mask].store(a, std::memory_order_release);
    }
  }

  // The virtual address width that CUDA supports.
  static constexpr unsigned address_bits = 57;

 private:
  static constexpr unsigned unit_bits = 21, table_bits = 12;
  static constexpr std::uint64_t mask = (1u << table_bits) - 1;
  template <class To>
  struct table {
    std::atomic<To *> at[std::size_t{1} << table_bits]{};
  };
  using leaf_table = table<arena>;
  using middle_table = table<leaf_table>;
  using root_table = table<middle_table>;
  static_assert(unit_bits + 3 * table_bits == address_bits);

  template <class Table>
  static Table &made(std::atomic<Table *> &entry, std::vector<std::unique_ptr<Table>> &all) {
    if (Table *const there = entry.load(std::memory_order_relaxed)) return *there;
    all.push_back(std::make_unique<Table>());
    entry.store(all.back().get(), std::memory_order_release);
    return *all.back();
  }
  leaf_table &leaf_of(std::uint64_t address) {
    root_table &root = made(root_, roots_);
    middle_table &middle = made(root.at[address >> (unit_bits + 2 * table_bits) & mask], middles_);
    return made(middle.at[address >> (unit_bits + table_bits) & mask], leaves_);
  }

  std::atomic<root_table *> root_{nullptr};
  std::vector<std::unique_ptr<root_table>> roots_;
  std::vector<std::unique_ptr<middle_table>> middles_;
  std::vector<std::unique_ptr<leaf_table>> leaves_;
};

}  // namespace stillmap
