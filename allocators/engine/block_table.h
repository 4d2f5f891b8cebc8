// A hash table from the address of an allocated block to its extent or slab: open addressing,
// linear probing, no tombstones. Only make_room needs host memory, when the table doubles.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stillmap/allocators/engine/tlsf_index.h"

namespace stillmap {

struct extent;
struct slab;

// An extent, or a block of a slab by its index, packed into one word: user-space pointers have 48
// bits, and their low bits are 0.
class block_ref {
 public:
  block_ref() = default;
  explicit block_ref(extent *s) : bits_(reinterpret_cast<std::uintptr_t>(s)) {}
  block_ref(slab *s, unsigned index)
      : bits_(reinterpret_cast<std::uintptr_t>(s) | std::uint64_t{index} << 56 | 1) {}

  explicit operator bool() const { return bits_ != 0; }
  bool in_slab() const { return (bits_ & 1) != 0; }
  extent *as_extent() const { return reinterpret_cast<extent *>(bits_); }
  slab *as_slab() const { return reinterpret_cast<slab *>(bits_ & ((std::uint64_t{1} << 56) - 2)); }
  unsigned index() const { return static_cast<unsigned>(bits_ >> 56); }

 private:
  std::uint64_t bits_ = 0;
};

// Threads: externally synchronised.
class block_table {
 public:
  block_table() { entries_.resize(std::size_t{1} << 7); }

  block_ref find(std::uint64_t address) const {
    for (std::size_t i = first_probe(address);; i = next(i)) {
      if (entries_[i].address == address) return entries_[i].block;
      if (entries_[i].address == 0) return {};
    }
  }

  // Afterwards `n` more addresses can be inserted. May run out of host memory, and then changes
  // nothing. A low load factor keeps probes short.
  void make_room(std::size_t n) {
    while ((count_ + n) * 8 > entries_.size() * 3) grow();
  }
  // Requires: there is room, and the address is not in the table.
  void insert(std::uint64_t address, block_ref block) {
    ++count_;
    put(address, block);
  }

  // Requires: the address is in the table. Moves later entries of the probe sequence up, so that
  //           none has a gap before it.
  void erase(std::uint64_t address) {
    std::size_t hole = first_probe(address);
    while (entries_[hole].address != address) hole = next(hole);
    for (std::size_t i = next(hole); entries_[i].address != 0; i = next(i)) {
      const std::size_t from = first_probe(entries_[i].address);
      if (((i - from) & (entries_.size() - 1)) >= ((i - hole) & (entries_.size() - 1))) {
        entries_[hole] = entries_[i];
        hole = i;
      }
    }
    entries_[hole] = {};
    --count_;
  }

  std::size_t size() const { return count_; }
  std::size_t host_bytes() const { return entries_.capacity() * sizeof(entry); }

 private:
  struct entry {
    std::uint64_t address = 0;  // 0: empty
    block_ref block;
  };

  std::size_t first_probe(std::uint64_t address) const {
    const std::uint64_t mixed = (address / allocation_granule) * 0x9E3779B97F4A7C15u;
    return static_cast<std::size_t>(mixed >> shift_);
  }
  std::size_t next(std::size_t i) const { return (i + 1) & (entries_.size() - 1); }
  void put(std::uint64_t address, block_ref block) {
    std::size_t i = first_probe(address);
    while (entries_[i].address != 0) i = next(i);
    entries_[i] = {address, block};
  }
  [[gnu::noinline]] void grow() {
    std::vector<entry> old(entries_.size() * 2);
    old.swap(entries_);
    --shift_;
    for (const entry &e : old) {
      if (e.address != 0) put(e.address, e.block);
    }
  }

  std::vector<entry> entries_;
  unsigned shift_ = 57;  // 64 - log2 of the number of entries
  std::size_t count_ = 0;
};

}  // namespace stillmap
