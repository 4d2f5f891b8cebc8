// The simulated devices.
#pragma once

#include <cuda.h>

namespace hostcuda {

bool valid_device(CUdevice device);

// Whether `from` can reach memory of `owner`: the devices of a multi:N machine are all peers.
bool can_access_peer(CUdevice from, CUdevice owner);

}  // namespace hostcuda
