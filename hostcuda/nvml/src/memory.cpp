// Memory of a device, and the processes that use it: those of the machine, or this one alone
// (machine=NAME). What hostcuda_occupy stands for counts as used, too.
#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "hostcuda/nvml/src/library.h"

namespace nvml {
namespace {

constexpr unsigned kNoInstance = 0xFFFFFFFFU;
constexpr unsigned kMemoryV2 = sizeof(nvmlMemory_v2_t) | 2U << 24;

template <class Memory>
void fill(const hostcuda_device &d, Memory *out) {
  const unsigned long long taken = d.used_bytes + d.occupied_bytes;
  out->total = d.total_bytes;
  out->used = taken < out->total ? taken : out->total;
  out->free = out->total - out->used;
}

nvmlProcessInfo_v1_t info_of(const process &p, nvmlProcessInfo_v1_t) {
  return {p.pid, p.bytes};
}

nvmlProcessInfo_v2_t info_of(const process &p, nvmlProcessInfo_v2_t) {
  return {p.pid, p.bytes, kNoInstance, kNoInstance};
}

template <class Info>
nvmlReturn_t processes(nvmlDevice_t device, unsigned *count, Info *infos) {
  return enter(device, [=](int ordinal, const hostcuda_device &) {
    if (count == nullptr || (*count != 0 && infos == nullptr)) return NVML_ERROR_INVALID_ARGUMENT;
    const std::vector<process> all = processes_on(ordinal);
    const unsigned room = *count;
    *count = static_cast<unsigned>(all.size());
    if (*count > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    std::transform(all.begin(), all.end(), infos,
                   [](const process &p) { return info_of(p, Info{}); });
    return NVML_SUCCESS;
  });
}

}  // namespace
}  // namespace nvml

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
  return nvml::enter(device, [=](int, const hostcuda_device &d) {
    if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    nvml::fill(d, memory);
    return NVML_SUCCESS;
  });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
  return nvml::enter(device, [=](int, const hostcuda_device &d) {
    if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    if (memory->version != nvml::kMemoryV2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvml::fill(d, memory);
    memory->reserved = 0;
    return NVML_SUCCESS;
  });
}

// A driver keeps these where the kernel does not. Here a test writes "SOFT HARD USED" into a file of the group.
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device,
                                                      nvmlGetMemoryLimits_v1_t *limits) {
  return nvml::enter(device, [=](int, const hostcuda_device &) {
    if (limits == nullptr || limits->nameSpace == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    std::ifstream from(std::string(limits->nameSpace) + "/hostcuda.limits");
    nvmlGetMemoryLimits_v1_t out = *limits;
    if (!(from >> out.softLimit >> out.hardLimit >> out.currentUsed)) {
      return NVML_ERROR_NOT_SUPPORTED;
    }
    *limits = out;
    return NVML_SUCCESS;
  });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                              nvmlProcessInfo_v1_t *infos) {
  return nvml::processes(device, count, infos);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device,
                                                                 unsigned *count,
                                                                 nvmlProcessInfo_v2_t *infos) {
  return nvml::processes(device, count, infos);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device,
                                                                 unsigned *count,
                                                                 nvmlProcessInfo_v2_t *infos) {
  return nvml::processes(device, count, infos);
}
