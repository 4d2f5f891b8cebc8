#include "hostcuda/src/device.h"

#include <cstring>

#include "hostcuda/src/machine.h"

namespace hostcuda {

bool valid_device(CUdevice device) {
  return device >= 0 && device < current_settings().machine.device_count;
}

CUuuid device_uuid(CUdevice device) {
  CUuuid uuid{};
  std::memcpy(uuid.bytes, "hostcuda-gpu", 12);
  uuid.bytes[15] = static_cast<char>(device);
  return uuid;
}

bool can_access_peer(CUdevice from, CUdevice owner) {
  return valid_device(from) && valid_device(owner) &&
         (from == owner || current_settings().machine.has_peers);
}

}  // namespace hostcuda
