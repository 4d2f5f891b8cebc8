// Device functions: count, names, attributes, memory size and peer access of the profile.
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "hostcuda/src/device.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/machine.h"

namespace hostcuda {
namespace {

// Attributes with the same value in all profiles, by number, so that older headers compile.
const std::map<int, int> &common_attributes() {
  static const auto *const table = new std::map<int, int>{
      {1, 1024},        {2, 1024},    {3, 1024},     {4, 64},           {5, 2147483647},
      {6, 65535},       {7, 65535},   {8, 49152},    {9, 65536},        {10, 32},
      {11, 2147483647}, {12, 65536},  {13, 1980000}, {14, 512},         {15, 1},
      {17, 0},          {19, 1},      {20, 0},       {21, 131072},      {22, 131072},
      {23, 65536},      {24, 16384},  {25, 16384},   {26, 16384},       {27, 32768},
      {28, 32768},      {29, 2048},   {30, 512},     {31, 1},           {32, 1},
      {34, 0},          {35, 0},      {36, 3201000}, {37, 6144},        {38, 62914560},
      {39, 2048},       {40, 3},      {41, 1},       {42, 32768},       {43, 2048},
      {44, 1},          {45, 32768},  {46, 32768},   {47, 0},           {48, 0},
      {49, 0},          {50, 0},      {51, 32},      {52, 32768},       {53, 32768},
      {54, 2046},       {55, 32768},  {56, 131072},  {57, 65536},       {58, 16384},
      {59, 16384},      {60, 16384},  {61, 32768},   {62, 2048},        {63, 32768},
      {64, 32768},      {65, 2048},   {66, 32768},   {67, 32768},       {68, 2046},
      {69, 268435456},  {70, 131072}, {71, 65000},   {72, 2097120},     {73, 32768},
      {74, 32768},      {77, 32768},  {78, 1},       {79, 1},           {80, 1},
      {81, 233472},     {82, 65536},  {83, 1},       {84, 0},           {86, 0},
      {87, 2},          {88, 0},      {89, 1},       {90, 1},           {91, 1},
      {92, 0},          {93, 0},      {94, 0},       {95, 1},           {96, 1},
      {97, 232448},     {98, 0},      {99, 1},       {100, 0},          {101, 0},
      {104, 0},         {105, 0},     {106, 32},     {107, 0},          {108, 39321600},
      {109, 134213632}, {111, 1024},  {112, 0},      {113, 0},          {114, 0},
      {118, 100},       {121, 0},     {122, 0},      {123, 0},          {124, 0},
      {125, 1},         {126, 4},     {127, 1},      {129, 0},          {130, 0},
      {131, -1},        {132, 0},     {133, 0},      {134, 0},          {135, 0},
      {136, 0},         {137, 0},     {138, 0},      {139, 0x233510de}, {140, 0x18be10de},
      {142, 0},         {143, 0},     {144, 0},      {146, 0},          {147, 0},
  };
  return *table;
}

// The last attribute number of a driver version.
int last_attribute(int driver_version) {
  return driver_version < 11020 ? 111 : 147;
}

// Returns nothing if `attribute` is unknown.
std::optional<int> attribute_value(int attribute, CUdevice device) {
  const profile &p = current_settings().machine;
  if (attribute > last_attribute(p.driver_version)) return std::nullopt;
  const int posix_fd = 1;
  const std::pair<int, int> of_profile[] = {
      {16, p.multiprocessors},
      {18, p.is_integrated},
      {33, 0x10 + device},
      {75, p.compute_major},
      {76, p.compute_minor},
      {85, device},
      {102, p.has_vmm},                          // virtual memory management
      {103, p.has_vmm},                          // POSIX fd handles
      {110, p.has_vmm},                          // RDMA of VMM memory; fails on WSL 2
      {115, p.has_pools},                        // memory pools
      {116, !p.refuses_fd_pools},                // RDMA of cuMemAlloc memory
      {117, 1},                                  // RDMA flush: from the host
      {119, p.has_pools ? posix_fd : 0},         // pool handles; fail on WSL 2
      {120, p.compute_major >= 9},               // clusters
      {128, p.has_vmm && p.compute_major >= 9},  // fabric, but no IMEX
      {141, p.has_vmm},                          // host NUMA virtual memory
      {145, p.has_vmm},                          // host virtual memory
  };
  for (const auto &[number, value] : of_profile)
    if (number == attribute) return value;
  const auto it = common_attributes().find(attribute);
  if (it == common_attributes().end()) return std::nullopt;
  return it->second;
}

CUresult get_uuid(CUuuid *uuid, CUdevice device) {
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *uuid = device_uuid(device);
  return CUDA_SUCCESS;
}

}  // namespace

int device_attribute(CUdevice_attribute attribute, CUdevice device) {
  return attribute_value(static_cast<int>(attribute), device).value_or(0);
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuDeviceGet, 2000, ignores_sticky, 0, (CUdevice * device, int ordinal), {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuDeviceGetCount, 2000, ignores_sticky, 0, (int *count), {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = current_settings().machine.device_count;
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuDeviceGetName, 2000, ignores_sticky, 0, (char *name, int length, CUdevice device),
               {
                 if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
                 if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
                 std::snprintf(name, static_cast<size_t>(length), "%s",
                               current_settings().machine.device_name.c_str());
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY_AND_V2(cuDeviceGetUuid, 9020, 11040, ignores_sticky, 0,
                      (CUuuid * uuid, CUdevice device), (uuid, device),
                      { return get_uuid(uuid, device); })

HOSTCUDA_ENTRY(cuDeviceTotalMem_v2, 3020, ignores_sticky, 0, (size_t * bytes, CUdevice device), {
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = current_settings().machine.device_memory;
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuDeviceGetAttribute, 2000, ignores_sticky, 0,
               (int *value, CUdevice_attribute attribute, CUdevice device), {
                 if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
                 const auto found = attribute_value(static_cast<int>(attribute), device);
                 if (!found) return CUDA_ERROR_INVALID_VALUE;
                 *value = *found;
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuDeviceComputeCapability, 2000, ignores_sticky, 0,
               (int *major, int *minor, CUdevice device), {
                 if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
                 *major = current_settings().machine.compute_major;
                 *minor = current_settings().machine.compute_minor;
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuDeviceGetPCIBusId, 4010, ignores_sticky, 0,
               (char *out, int length, CUdevice device), {
                 if (out == nullptr || length < 13) return CUDA_ERROR_INVALID_VALUE;
                 if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
                 std::snprintf(out, static_cast<size_t>(length), "0000:%02X:00.0", 0x10 + device);
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuDeviceGetByPCIBusId, 4010, ignores_sticky, 0,
               (CUdevice * device, const char *text), {
                 unsigned domain = 0;
                 unsigned bus = 0;
                 unsigned slot = 0;
                 if (device == nullptr || text == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 if (std::sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3 &&
                     (domain = 0, std::sscanf(text, "%x:%x", &bus, &slot) != 2))
                   return CUDA_ERROR_INVALID_VALUE;
                 const int ordinal = static_cast<int>(bus) - 0x10;
                 if (domain != 0 || slot != 0 || !valid_device(ordinal))
                   return CUDA_ERROR_INVALID_DEVICE;
                 *device = ordinal;
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuDeviceCanAccessPeer, 4000, ignores_sticky, 0,
               (int *can, CUdevice device, CUdevice peer), {
                 if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 if (!valid_device(device) || !valid_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
                 *can = device != peer && can_access_peer(device, peer);
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuDeviceGetP2PAttribute, 8000, ignores_sticky, 0,
               (int *value, CUdevice_P2PAttribute attribute, CUdevice source, CUdevice target), {
                 if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 if (!valid_device(source) || !valid_device(target) || source == target)
                   return CUDA_ERROR_INVALID_DEVICE;
                 switch (static_cast<int>(attribute)) {
                   case 1:  // performance rank
                   case 5:  // only partial atomics
                     *value = 0;
                     return CUDA_SUCCESS;
                   case 2:  // access
                   case 3:  // native atomics
                   case 4:  // arrays
                     *value = can_access_peer(source, target);
                     return CUDA_SUCCESS;
                   default:
                     return CUDA_ERROR_INVALID_VALUE;
                 }
               })
