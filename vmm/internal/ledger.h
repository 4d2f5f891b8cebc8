// What an address_space knows of its mappings. docs/pages.md#the-ledger
#pragma once

#include <memory>
#include <utility>

#include "stillmap/vmm/internal/mapping_index.h"

namespace stillmap {

// Entries for later use, because a program that moves pages makes and drops as many.
// Threads: externally synchronised.
class spare_entries {
 public:
  spare_entries() = default;
  spare_entries(const spare_entries &) = delete;
  ~spare_entries() {
    while (mapping_entry *const e = spare_.pop_back()) delete e;
  }
  std::unique_ptr<mapping_entry> take() {  // nullptr: there is none
    return std::unique_ptr<mapping_entry>(spare_.pop_back());
  }
  // Requires: the entry holds nothing.
  void give(std::unique_ptr<mapping_entry> e) {
    if (spare_.size() < most) spare_.push_back(*e.release());
  }

 private:
  static constexpr std::size_t most = 1024;
  mapping_list spare_;
};

// Threads: externally synchronised, by the address space's mutex_.
struct ledger {
  explicit ledger(std::size_t page_bytes) : mappings(page_bytes) {}
  spare_entries spare;
  mapping_index mappings;
  mapping_list retiring;  // in the order of retiring
};

}  // namespace stillmap
