// The simulated devices.
#pragma once

#include <cuda.h>

namespace hostcuda {

bool valid_device(CUdevice device);

// Whether `from` can reach memory of `owner`: all devices of a machine are peers, or none are.
bool can_access_peer(CUdevice from, CUdevice owner);

}  // namespace hostcuda
