// The suspender of each device, which suspend(), resume() and the control server have together.
#pragma once

#include <memory>

#include "stillmap/checkpoint/suspend/suspender.h"

namespace stillmap::python {

// Creates it. Never destroyed: what is suspended must outlive Python's objects.
// Threads: safe. Without the GIL. Errors: those of device::open and suspender::create.
result<std::shared_ptr<checkpoint::suspender>> suspender_of(int ordinal);

// Null: nothing of the device was suspended so far.
std::shared_ptr<checkpoint::suspender> known_suspender(int ordinal);

}  // namespace stillmap::python
