// Memory that came from elsewhere, at the addresses that it had there or, if so asked, at others:
// reserved, mapped all or not at all, and owned. docs/design.md#layout-and-landing
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stillmap/checkpoint/common/layout.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/reservation.h"

namespace stillmap::checkpoint {

enum class placement {
  same,      // each block at the addresses that it has in the layout
  anywhere,  // wherever there is room: layout() tells
};

// Owner of the blocks of a layout. They are in the ledger under their tags like all others, so what
// works by tag (suspend, hand over) works on them.
// Threads: externally synchronised.
class restored_memory {
 public:
  // Requires: check(layout, ...) was good.
  // Ensures:  blocks are in the order of the layout that was given. Failure: nothing is reserved.
  // Errors:   busy (an address is taken: value = it; find_mapping_owner() says by whom),
  //           address_space_exhausted, the driver's. Cost: one reserve for each block.
  static result<restored_memory> reserve(const stillmap::device &d, memory_layout layout,
                                       placement where = placement::same);
  restored_memory(restored_memory &&) noexcept = default;
  restored_memory &operator=(restored_memory &&o) noexcept;  // `o` leaves with what was here
  // Waits for the device, as cuMemFree does, where release() was not called.
  ~restored_memory();

  // Puts pages[i] wherever the layout has page i, with the access that it has there. Once.
  // Ensures: failure: nothing is mapped. Errors: as a remap.
  // Cost:    one map a place, one set-access a contiguous run of equal access.
  status map(const std::vector<page_ptr> &pages);

  const stillmap::device &device() const { return device_; }
  const memory_layout &layout() const { return layout_; }
  // Whole blocks of this tag, in address order: what buffers and allocators were there before.
  std::vector<virtual_range> tagged(std::string_view tag) const { return layout_.tagged(tag); }
  std::size_t bytes() const { return layout_.bytes(); }

  // Gives up all of it when `idle` has passed; pages that are mapped nowhere else are released.
  // Errors: the driver's; then the rest is given up all the same.
  status release(const fence &idle);

 private:
  restored_memory(const stillmap::device &d, memory_layout l) : device_(d), layout_(std::move(l)) {}
  stillmap::device device_;
  memory_layout layout_;
  std::vector<std::shared_ptr<page_pool>> homes_;  // of the pages, which do not keep them
  std::vector<reservation> blocks_;                // as layout_.blocks
  bool mapped_ = false;
};

// Who has addresses of that range in this process, as the kernel tells it:
// "7f1200000000-7f1200021000 rw-p /usr/lib/libfoo.so". Empty: nobody.
std::string find_mapping_owner(virtual_range range);

}  // namespace stillmap::checkpoint
