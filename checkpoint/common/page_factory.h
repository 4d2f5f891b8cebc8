// Creates the pages of a layout on a device, of the same sizes and kinds.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "stillmap/checkpoint/common/layout.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap::checkpoint {

// Whether an empty device `d` could hold the pages of the layout.
// Errors: not_supported (a device without VMM; pages of a size or kind that it cannot create),
//         out_of_memory (value = bytes that are needed, limit = the device's memory), the driver's.
status can_hold(const device &d, const memory_layout &l);

// Creates the pages of a layout, some at a time. Threads: externally synchronised.
class page_factory {
 public:
  // Errors: as page_pool::create. Cost: none.
  static result<page_factory> create(const device &d, const memory_layout &l);

  // Creates pages `first` to `first + count` of the layout, in its order.
  // Ensures: failure: none of them is left.
  // Errors:  out_of_memory, the driver's.
  // Cost:    one create a page.
  result<std::vector<page_ptr>> make(std::size_t first, std::size_t count);

 private:
  std::vector<std::shared_ptr<page_pool>> pools_;  // one for each kind of page
  std::vector<std::uint32_t> kinds_;               // of each page of the layout: index of its pool
};

// Creates all pages of the layout.
result<std::vector<page_ptr>> create_pages(const device &d, const memory_layout &l);

}  // namespace stillmap::checkpoint
