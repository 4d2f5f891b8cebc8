// A two-level segregated fit (TLSF) index: nodes by size, with insert, remove and next-larger-bin
// in constant time. Owns nothing; a node is in at most one index and carries its links. No driver.
// docs/allocator_placement.md#the-order-of-the-search
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace stillmap {

// The unit of the allocator: every block address and size is a multiple of it. Bytes.
inline constexpr std::size_t allocation_granule = 512;

// The links of a node.
template <class Node>
struct size_links {
  Node *before = nullptr;
  Node *after = nullptr;
  std::uint16_t bin = 0;
  bool in = false;
};

// Units:   sizes are bytes, multiples of the granule, at least one.
// Threads: externally synchronised.
template <class Node, size_links<Node> Node::*Links>
class tlsf_index {
 public:
  void insert(Node &n, std::uint64_t bytes) {
    const std::size_t bin = bin_of(bytes / allocation_granule);
    link(n, bin);
    second_[bin / fine] |= std::uint32_t{1} << (bin % fine);
    first_ |= std::uint64_t{1} << (bin / fine);
  }
  // The same, but each_from() finds the node only after sort(): one that is removed before costs
  // little.
  void insert_unsorted(Node &n) { link(n, unsorted); }
  // `bytes_of(node)`: its size. It must not change the index.
  template <class BytesOf>
  void sort(BytesOf bytes_of) {
    while (Node *const n = heads_[unsorted]) {
      heads_[unsorted] = (n->*Links).after;
      insert(*n, bytes_of(*n));
    }
  }
  bool is_sorted(const Node &n) const { return (n.*Links).bin != unsorted; }
  template <class Use>
  void each_unsorted(Use use) const {
    for (const Node *n = heads_[unsorted]; n != nullptr; n = (n->*Links).after) use(*n);
  }

  // Requires: it is sorted.
  void remove(Node &n) {
    remove_unsorted(n);
    const std::size_t bin = (n.*Links).bin;
    if (heads_[bin] != nullptr) return;
    std::uint32_t &row = second_[bin / fine];
    row &= ~(std::uint32_t{1} << (bin % fine));
    if (row == 0) first_ &= ~(std::uint64_t{1} << (bin / fine));
  }
  // The same for a node that is not sorted.
  void remove_unsorted(Node &n) {
    size_links<Node> &links = n.*Links;
    if (links.before != nullptr) {
      (links.before->*Links).after = links.after;
    } else {
      heads_[links.bin] = links.after;
    }
    if (links.after != nullptr) (links.after->*Links).before = links.before;
    links.in = false;
  }

  // Calls `use(node)` from the bin of `bytes` upwards, which may contain slightly smaller nodes,
  // until it returns false. `use` must not change the index.
  template <class Use>
  void each_from(std::uint64_t bytes, Use use) const {
    const std::size_t first = bin_of(bytes / allocation_granule);
    std::size_t row = first / fine;
    // The next bin depends on no node, so nodes can be prefetched.
    std::uint32_t here = second_[row] & (~std::uint32_t{0} << (first % fine));
    std::uint64_t later = first_ & (~std::uint64_t{0} << row) & ~(std::uint64_t{1} << row);
    for (;;) {
      for (; here != 0; here &= here - 1) {
        Node *n = heads_[row * fine + static_cast<std::size_t>(std::countr_zero(here))];
        for (; n != nullptr; n = (n->*Links).after) {
          if (!use(*n)) return;
        }
      }
      if (later == 0) return;
      row = static_cast<std::size_t>(std::countr_zero(later));
      here = second_[row];
      later &= later - 1;
    }
  }

  // Calls `use(node)` for the nodes in the bin of `bytes`, which contains all of that size.
  template <class Use>
  void each_in_bin(std::uint64_t bytes, Use use) const {
    Node *n = heads_[bin_of(bytes / allocation_granule)];
    for (; n != nullptr; n = (n->*Links).after) use(*n);
  }
  // Removes all, sorted or not, and calls `use(node)` for each.
  template <class Use>
  void remove_each(Use use) {
    while (Node *const n = heads_[unsorted]) {
      remove_unsorted(*n);
      use(*n);
    }
    while (first_ != 0) {
      const auto row = static_cast<std::size_t>(std::countr_zero(first_));
      const auto column = static_cast<std::size_t>(std::countr_zero(second_[row]));
      Node &n = *heads_[row * fine + column];
      remove(n);
      use(n);
    }
  }

  // Whether the node is in the bin of `bytes`.
  bool contains(const Node &n, std::uint64_t bytes) const {
    const Node *there = heads_[bin_of(bytes / allocation_granule)];
    while (there != nullptr && there != &n) there = (there->*Links).after;
    return there == &n;
  }

 private:
  static constexpr std::size_t fine_bits = 4, fine = std::size_t{1} << fine_bits;
  // Sizes to 2^57 bytes, the widest addresses that CUDA supports.
  static constexpr std::size_t rows = 57 - 9 - fine_bits + 2;
  static constexpr std::size_t bins = rows * fine;
  static constexpr std::size_t unsorted = bins;  // its list follows those of the bins

  void link(Node &n, std::size_t bin) {
    size_links<Node> &links = n.*Links;
    links.bin = static_cast<std::uint16_t>(bin);
    links.in = true;
    links.before = nullptr;
    links.after = heads_[bin];
    if (heads_[bin] != nullptr) (heads_[bin]->*Links).before = &n;
    heads_[bin] = &n;
  }

  // Sizes below `fine` granules have a bin each; above, each power of two has `fine` bins.
  static std::size_t bin_of(std::uint64_t granules) {
    if (granules < fine) return static_cast<std::size_t>(granules);
    const std::size_t log = static_cast<std::size_t>(std::bit_width(granules)) - 1;
    return (log - fine_bits + 1) * fine +
           static_cast<std::size_t>((granules >> (log - fine_bits)) & (fine - 1));
  }

  std::uint64_t first_ = 0;
  std::array<std::uint32_t, rows> second_{};
  std::array<Node *, bins + 1> heads_{};
};

}  // namespace stillmap
