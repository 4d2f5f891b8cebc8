// The structures have the documented sizes and offsets on 64-bit Linux, which C bindings rely on.
#include <gtest/gtest.h>

#include <cstddef>

#include "hostcuda/nvml/src/nvml_api.h"

static_assert(sizeof(nvmlReturn_t) == 4);
static_assert(sizeof(nvmlPciInfo_t) == 68);
static_assert(offsetof(nvmlPciInfo_t, domain) == 16);
static_assert(offsetof(nvmlPciInfo_t, pciDeviceId) == 28);
static_assert(offsetof(nvmlPciInfo_t, busId) == 36);
static_assert(sizeof(nvmlMemory_t) == 24);
static_assert(sizeof(nvmlMemory_v2_t) == 40);
static_assert(offsetof(nvmlMemory_v2_t, total) == 8);
static_assert(sizeof(nvmlGetMemoryLimits_v1_t) == 32);
static_assert(offsetof(nvmlGetMemoryLimits_v1_t, softLimit) == 8);
static_assert(offsetof(nvmlGetMemoryLimits_v1_t, currentUsed) == 24);
static_assert(sizeof(nvmlProcessInfo_v1_t) == 16);
static_assert(sizeof(nvmlProcessInfo_v2_t) == 24);
static_assert(offsetof(nvmlProcessInfo_v2_t, gpuInstanceId) == 16);
