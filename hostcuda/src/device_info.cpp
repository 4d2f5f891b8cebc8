// hostcuda_get_device and hostcuda_each_process: a device as management tools see it, without cuInit and
// without a context.
#include <hostcuda/hostcuda.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <shared_mutex>
#include <vector>

#include "hostcuda/src/context.h"
#include "hostcuda/src/device.h"
#include "hostcuda/src/entry/entry_rules.h"
#include "hostcuda/src/machine.h"
#include "hostcuda/src/memory/memory_state.h"
#include "hostcuda/src/shared_machine.h"

namespace hostcuda {
namespace {

std::uint64_t contexts_on(CUdevice device) {
  std::uint64_t n = 0;
  for (const context *ctx : live_contexts()) n += ctx->device == device ? 1 : 0;
  return n;
}

// A forked child has the memory of no machine, but sees that of a shared one.
void describe_use(CUdevice device, hostcuda_device *out) {
  // Another thread of the parent may have held these locks at the fork.
  if (in_forked_child()) {
    out->occupied_bytes = bytes_of_others(device);
    return;
  }
  out->contexts = contexts_on(device);
  memory_registry &memory = the_memory();
  std::shared_lock<std::shared_mutex> lock(memory.mutex);
  out->used_bytes = memory.used[device];
  out->occupied_bytes = memory.occupied[device] + bytes_of_others(device);
}

std::vector<machine_process> processes_on(CUdevice device) {
  if (!current_settings().machine_name.empty()) return machine_processes(device);
  if (in_forked_child() || contexts_on(device) == 0) return {};
  std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
  return {{static_cast<unsigned>(getpid()), the_memory().used[device]}};
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;

extern "C" __attribute__((visibility("default"))) CUresult hostcuda_get_device(
    CUdevice device, hostcuda_device *out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  const profile &machine = current_settings().machine;
  *out = hostcuda_device{};
  std::snprintf(out->name, sizeof out->name, "%s", machine.device_name.c_str());
  const CUuuid uuid = device_uuid(device);
  std::memcpy(out->uuid, uuid.bytes, sizeof out->uuid);
  out->driver_version = machine.driver_version;
  out->compute_major = machine.compute_major;
  out->compute_minor = machine.compute_minor;
  out->pci_bus = device_attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device);
  // By number, so that older headers compile; an old driver has neither.
  out->pci_device_id = device_attribute(static_cast<CUdevice_attribute>(139), device);
  out->pci_subsystem_id = device_attribute(static_cast<CUdevice_attribute>(140), device);
  out->total_bytes = machine.device_memory;
  describe_use(device, out);
  return CUDA_SUCCESS;
}

extern "C" __attribute__((visibility("default"))) CUresult hostcuda_each_process(
    CUdevice device, void (*cb)(unsigned process, size_t used_bytes, void *user), void *user) {
  if (cb == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  for (const machine_process &p : processes_on(device)) cb(p.process, p.bytes, user);
  return CUDA_SUCCESS;
}
