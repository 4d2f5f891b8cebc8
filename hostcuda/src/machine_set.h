// The writing half of machine.h, for hostcuda_reset() only.
#pragma once

#include "machine.h"

namespace hostcuda {

// Access rights of a mapping are two bits per device in one 64-bit word, the last pair the host's.
constexpr int kMaxDevices = 31;

// Requires: no other thread is inside the driver.
void replace_settings(const settings &s);

}  // namespace hostcuda
