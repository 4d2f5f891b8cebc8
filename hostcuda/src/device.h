// Device ordinals and peer access of the simulated machine.
#pragma once

#include <cuda.h>

namespace hostcuda {

bool valid_device(CUdevice device);

// Whether `from` can access memory of `owner`. Either all devices of a machine are peers, or none.
bool can_access_peer(CUdevice from, CUdevice owner);

}  // namespace hostcuda
