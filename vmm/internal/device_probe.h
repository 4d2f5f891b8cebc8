// Finds out what a device can do by doing it. docs/driver.md#devices-and-fallbacks
#pragma once

#include "stillmap/vmm/capabilities.h"
#include "stillmap/vmm/driver.h"

namespace stillmap {

// Tries every feature and releases everything it created. A feature whose trial fails is absent.
// Requires: the device's context is current.
// Errors:   device_lost; out_of_memory (not even one page is free, so that nothing can be tried).
result<capabilities> probe(const stillmap::driver &drv, int ordinal);

}  // namespace stillmap
