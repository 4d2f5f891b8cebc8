// Device ordinals and peer access of the simulated machine.
#pragma once

#include <cuda.h>

namespace hostcuda {

bool valid_device(CUdevice device);

// The value of an attribute; 0 if it is unknown to the driver version.
// Requires: valid_device(device).
int device_attribute(CUdevice_attribute attribute, CUdevice device);

// A device has the same identity in all processes.
CUuuid device_uuid(CUdevice device);

// Whether `from` can access memory of `owner`. Either all devices of a machine are peers, or none.
bool can_access_peer(CUdevice from, CUdevice owner);

}  // namespace hostcuda
