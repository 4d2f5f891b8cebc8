// New pages on a device, of the kinds that a layout has.
#pragma once

#include <vector>

#include "stillmap/checkpoint/layout.h"

namespace stillmap::checkpoint {

// Whether pages as the layout has them can be made on `d` at all, empty as it may be.
// Errors: not_supported (a device without VMM; pages of a size or kind that it cannot make),
//         out_of_memory (value = bytes wanted, limit = all that the device has), the driver's.
status can_hold(const device &d, const memory_layout &l);

// Pages as the layout has them, in its order. Failure: none are left. Errors: out_of_memory, the
// driver's. Cost: one create a page.
result<std::vector<page_ref>> make_pages(const device &d, const memory_layout &l);

}  // namespace stillmap::checkpoint
