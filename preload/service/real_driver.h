// The driver that the program uses, for Stillmap's own calls.
#pragma once

#include "stillmap/vmm/driver.h"

namespace stillmap::preload {

// The library in which the functions are that the wrappers pass on to. Its own calls pass no wrapper.
// Errors: not_supported (the program has found no driver yet), those of driver::load.
result<driver *> open_real_driver();

}  // namespace stillmap::preload
