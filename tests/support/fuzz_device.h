// The device of a fuzz entry that runs alone, without a test's fixture.
#pragma once

#include <stdexcept>

#include "stillmap/vmm/device.h"
#include "stillmap/vmm/driver.h"

namespace stillmap::testing {

// Open as long as the fuzzer runs.
inline const device &fuzz_device() {
  static const device d = [] {
    const auto drv = driver::get();
    if (!drv) throw std::runtime_error(drv.error().message());
    if (const status s = (*drv)->initialise(); !s) throw std::runtime_error(s.error().message());
    auto opened = device::open(**drv, 0);
    if (!opened) throw std::runtime_error(opened.error().message());
    return *opened;
  }();
  return d;
}

}  // namespace stillmap::testing
