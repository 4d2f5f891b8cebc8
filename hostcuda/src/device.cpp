#include "hostcuda/src/device.h"

#include "hostcuda/src/machine.h"

namespace hostcuda {

bool valid_device(CUdevice device) {
  return device >= 0 && device < current_settings().machine.device_count;
}

bool can_access_peer(CUdevice from, CUdevice owner) {
  return valid_device(from) && valid_device(owner) &&
         (from == owner || current_settings().machine.has_peers);
}

}  // namespace hostcuda
