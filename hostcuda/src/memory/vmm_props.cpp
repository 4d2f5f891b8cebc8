#include "hostcuda/src/memory/vmm_props.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "hostcuda/src/device.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/machine.h"
#include "hostcuda/src/memory/memory_state.h"

namespace hostcuda {
namespace {

// Numbers, because older headers lack some of the names.
constexpr int kLocationDevice = 1;
constexpr int kLocationHost = 2;
constexpr int kLocationHostNuma = 3;
constexpr int kHandleFd = 1;
constexpr int kHandleFabric = 8;

bool numa_node_exists(int node) {
  char path[64];
  std::snprintf(path, sizeof path, "/sys/devices/system/node/node%d", node);
  return node == 0 || (node > 0 && access(path, F_OK) == 0);
}

CUresult check_location(const CUmemAllocationProp &prop, int *location) {
  switch (static_cast<int>(prop.location.type)) {
    case kLocationDevice:
      if (!valid_device(prop.location.id)) return CUDA_ERROR_INVALID_DEVICE;
      *location = prop.location.id;
      return CUDA_SUCCESS;
    case kLocationHost:
      if (current_settings().machine.driver_version < 12020) return CUDA_ERROR_INVALID_VALUE;
      if (prop.requestedHandleTypes != 0) return CUDA_ERROR_INVALID_VALUE;
      *location = kHostLocation;
      return CUDA_SUCCESS;
    case kLocationHostNuma:
      if (current_settings().machine.driver_version < 12020) return CUDA_ERROR_INVALID_VALUE;
      if (!numa_node_exists(prop.location.id)) return CUDA_ERROR_INVALID_VALUE;
      *location = kHostLocation;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;  // includes HOST_NUMA_CURRENT
  }
}

CUmemAllocationProp shared_properties(int type, int id, int handles, int rdma, int usage) {
  CUmemAllocationProp prop;
  std::memset(&prop, 0, sizeof prop);
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = static_cast<CUmemLocationType>(type);
  prop.location.id = id;
  prop.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(handles);
  prop.allocFlags.gpuDirectRDMACapable = static_cast<unsigned char>(rdma);
  prop.allocFlags.usage = static_cast<unsigned short>(usage);
  return prop;
}

CUresult check_handle_types(const CUmemAllocationProp &prop) {
  const unsigned types = static_cast<unsigned>(prop.requestedHandleTypes);
  if ((types & ~15U) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((types & ~(1U * kHandleFd | kHandleFabric)) != 0) return CUDA_ERROR_NOT_SUPPORTED;  // WIN32
  if ((types & kHandleFabric) != 0)
    // Advertised since Hopper, but there is no IMEX channel.
    return current_settings().machine.compute_major >= 9 ? CUDA_ERROR_NOT_PERMITTED
                                                         : CUDA_ERROR_NOT_SUPPORTED;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult check_properties(const CUmemAllocationProp *prop, int *location) {
  if (!current_settings().machine.has_vmm) return CUDA_ERROR_NOT_SUPPORTED;
  if (prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = check_location(*prop, location); r != CUDA_SUCCESS) return r;
  return check_handle_types(*prop);
}

CUresult check_import_type(CUmemAllocationHandleType type) {
  switch (static_cast<int>(type)) {
    case 1:
      return CUDA_SUCCESS;
    case 2:
    case 4:  // the two WIN32 kinds
      return CUDA_ERROR_NOT_SUPPORTED;
    case 8:
      return CUDA_ERROR_NOT_PERMITTED;  // fabric without IMEX
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

std::string share_name(const CUmemAllocationProp &prop) {
  char name[128];
  std::snprintf(name, sizeof name, "hostcuda-vmm:%d:%d:%d:%d:%d",
                static_cast<int>(prop.location.type), prop.location.id,
                static_cast<int>(prop.requestedHandleTypes),
                static_cast<int>(prop.allocFlags.gpuDirectRDMACapable),
                static_cast<int>(prop.allocFlags.usage));
  return name;
}

std::string file_behind(int fd) {
  char link[64];
  char target[256];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, target, sizeof target);
  return n <= 0 ? std::string() : std::string(target, static_cast<std::size_t>(n));
}

bool parse_share_name(const std::string &name, CUmemAllocationProp *prop) {
  int type = 0;
  int id = 0;
  int handles = 0;
  int rdma = 0;
  int usage = 0;
  if (std::sscanf(name.c_str(), "/memfd:hostcuda-vmm:%d:%d:%d:%d:%d", &type, &id, &handles, &rdma,
                  &usage) != 5)
    return false;
  *prop = shared_properties(type, id, handles, rdma, usage);
  return true;
}

// Mode bits: the sticky bit, which new files do not have and writes do not clear; 0; 0; RDMA; NUMA
// node or device; five bits of its number.
bool share_mode(const CUmemAllocationProp &prop, mode_t *mode) {
  const bool numa = static_cast<int>(prop.location.type) == kLocationHostNuma;
  const unsigned which = static_cast<unsigned>(prop.location.id);
  if ((!numa && static_cast<int>(prop.location.type) != kLocationDevice) || which > 31 ||
      static_cast<int>(prop.requestedHandleTypes) != kHandleFd || prop.allocFlags.usage != 0)
    return false;
  *mode = S_ISVTX | (prop.allocFlags.gpuDirectRDMACapable != 0 ? 1U << 6 : 0U) |
          (numa ? 1U << 5 : 0U) | which;
  return true;
}

bool parse_share_mode(mode_t mode, CUmemAllocationProp *prop) {
  if ((mode & 07777U & ~0177U) != S_ISVTX) return false;
  *prop = shared_properties((mode >> 5 & 1U) != 0 ? kLocationHostNuma : kLocationDevice,
                            static_cast<int>(mode & 31U), kHandleFd,
                            static_cast<int>(mode >> 6 & 1U), 0);
  return true;
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuMemGetAllocationGranularity, 10020, plain, 0,
               (size_t * granularity, const CUmemAllocationProp *prop,
                CUmemAllocationGranularity_flags option),
               {
                 if (granularity == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 if (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
                     option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
                   return CUDA_ERROR_INVALID_VALUE;
                 int location = 0;
                 if (CUresult r = check_properties(prop, &location); r != CUDA_SUCCESS) return r;
                 *granularity = kGranularity;
                 return CUDA_SUCCESS;
               })
