// What the program is told where a handle cannot be opened, as the driver would say it: the exporter sends it, and the
// importer returns it.
#pragma once

#include "preload/functions/abi.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::preload {

// A code of the driver's stays. Otherwise: no memory is out_of_memory, no such block or no such process invalid_handle,
// all else map_failed.
driver_code code_of_refusal(const error &e) noexcept;

// An error with a code of the driver's.
tl::unexpected<error> make_driver_error(driver_code code, const char *reason) noexcept;

}  // namespace stillmap::preload
