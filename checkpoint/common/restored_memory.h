// Memory that is restored from a layout: reserved at its original addresses or elsewhere, mapped
// completely or not at all, and owned. docs/migration.md
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stillmap/checkpoint/common/layout.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/reservation.h"

namespace stillmap::checkpoint {

enum class placement {
  same,      // each block at its addresses in the layout
  anywhere,  // wherever there is room; layout() has the new addresses
};

// Owner of the blocks of a layout. The ledger has them under their tags, so suspend, snapshot and
// handoff work on them as on all other memory.
// Threads: externally synchronised.
class restored_memory {
 public:
  // Reserves the addresses of all blocks.
  // Requires: check(layout, ...) succeeded.
  // Ensures:  the blocks keep the order of `layout`. Failure: nothing is reserved.
  // Errors:   busy (an address is in use: value = the address; see find_mapping_owner()),
  //           address_space_exhausted, the driver's.
  // Cost:     one reserve a block.
  static result<restored_memory> reserve(const stillmap::device &d, memory_layout layout,
                                         placement where = placement::same);
  // Block i at at[i], or anywhere if that is 0.
  // Requires: an address for each block.
  static result<restored_memory> reserve_at(const stillmap::device &d, memory_layout layout,
                                            std::span<const device_address> at);
  restored_memory(restored_memory &&) noexcept = default;
  // By swapping: the destructor of `o` releases the memory that was here.
  restored_memory &operator=(restored_memory &&o) noexcept;
  // Unless release() was called, waits for the device first, as cuMemFree does.
  ~restored_memory();

  // Maps pages[i] at every place of page i in the layout, with the access rights of the place.
  // Requires: not mapped yet.                                    (checked)
  // Ensures:  failure: nothing is mapped.
  // Errors:   invalid_argument (another number of pages than in the layout), as
  // address_space::apply. Cost:     one map a place, one set-access a contiguous run of equal
  // access rights.
  status map(const std::vector<page_ptr> &pages);

  const stillmap::device &device() const { return device_; }
  // Of blocks that were reserved elsewhere the order is the original one, not that of the addresses.
  const memory_layout &layout() const { return layout_; }
  // Whole blocks of this tag, in address order.
  std::vector<virtual_range> tagged(std::string_view tag) const { return layout_.tagged(tag); }
  std::size_t bytes() const { return layout_.bytes(); }

  // Unmaps everything once `idle` has passed, and releases pages that are not mapped elsewhere.
  // Errors: the first of the driver's; everything else is released nevertheless.
  status release(const fence &idle);

 private:
  restored_memory(const stillmap::device &d, memory_layout l) : device_(d), layout_(std::move(l)) {}
  status map_all(const std::vector<page_ptr> &pages);
  stillmap::device device_;
  memory_layout layout_;
  std::vector<std::shared_ptr<page_pool>> pools_;  // mapped pages do not keep their pools alive
  std::vector<reservation> blocks_;                // in the order of layout_.blocks
  bool mapped_ = false;
};

// The first mapping of this process that overlaps the range, from /proc/self/maps:
// "7f1200000000-7f1200021000 rw-p /usr/lib/libfoo.so". Empty where there is none.
std::string find_mapping_owner(virtual_range range);

}  // namespace stillmap::checkpoint
