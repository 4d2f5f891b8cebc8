// The devices that this process has opened, and what is known of them.
#pragma once

#include <nanobind/nanobind.h>

#include "stillmap/vmm/device.h"

namespace stillmap::python {

namespace nb = nanobind;

// The device, which stays open until the process ends: opening it again would probe it again.
// Threads: safe. Without the GIL. Errors: those of device::open.
result<device> open_device(int ordinal);

void bind_devices(nb::module_ &m);

}  // namespace stillmap::python
