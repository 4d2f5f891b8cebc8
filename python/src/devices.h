// The devices that this process has opened, and what is known of them.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <string>

#include "stillmap/vmm/device.h"

namespace stillmap::python {

namespace nb = nanobind;

// The device, which stays open until the process ends: opening it again would probe it again.
// Threads: safe. Without the GIL. Errors: those of device::open.
result<device> open_device(int ordinal);

// "GPU-…", as NVIDIA's tools write it.
std::string text_of_uuid(const std::array<unsigned char, 16> &uuid);

void bind_devices(nb::module_ &m);

}  // namespace stillmap::python
