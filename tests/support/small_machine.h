// The machine that a model runs on. On hostcuda it is a small one that runs out of memory, fails on
// request, and reports its resources. On another driver its device is used unchanged: no failures are
// injected, and only contents are compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "stillmap/vmm/driver.h"

namespace stillmap::testing::small_machine {

// A fresh machine with so much memory; `seed` of its schedule, 0: threads. nullptr where it does
// not start. Requires: all devices are closed.
driver *start(std::size_t mib, std::uint64_t seed);
// Another process takes so much of the memory.
void occupy(std::size_t bytes);

// The nth next call of `name` fails with this CUresult.
void fail(const std::string &name, std::uint64_t nth, int code);
// No more. Whether it has failed.
bool stop_failing(const std::string &name);

// Device work that touched what it must not; empty when there was none.
std::string violation();
// What is left on the device, one line each; empty when nothing is.
std::string leftovers();
// Empty where the driver has handed out exactly so much memory.
std::string disagreement_about(std::size_t bytes);

}  // namespace stillmap::testing::small_machine
