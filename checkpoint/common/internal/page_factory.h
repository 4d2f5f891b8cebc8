// New pages on a device, of the kinds that a layout has.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "stillmap/checkpoint/common/layout.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap::checkpoint {

// Whether pages as the layout has them can be made on `d` at all, empty as it may be.
// Errors: not_supported (a device without VMM; pages of a size or kind that it cannot make),
//         out_of_memory (value = bytes wanted, limit = all that the device has), the driver's.
status can_hold(const device &d, const memory_layout &l);

// Makes the pages of a layout, a few at a time. Threads: externally synchronised.
class page_maker {
 public:
  // Errors: as page_pool::create. Cost: none.
  static result<page_maker> create(const device &d, const memory_layout &l);

  // Pages `first` to `first + count` of the layout, new ones, in its order. Failure: none of them
  // are left. Errors: out_of_memory, the driver's. Cost: one create a page.
  result<std::vector<page_ptr>> make(std::size_t first, std::size_t count);

 private:
  std::vector<std::shared_ptr<page_pool>> pools_;  // one for each kind of page
  std::vector<std::uint32_t> kinds_;               // of the layout's pages
};

// All of them.
result<std::vector<page_ptr>> make_pages(const device &d, const memory_layout &l);

}  // namespace stillmap::checkpoint
