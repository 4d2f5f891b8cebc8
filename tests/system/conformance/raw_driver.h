// The tested driver as function pointers, without any code of Stillmap: the suite judges the driver
// that this code is built on.
//
// The library is found as Stillmap finds it: STILLMAP_DRIVER=cuda (default), host (the file named
// by STILLMAP_HOSTCUDA) or a path with a slash in it. It is never unloaded.
#pragma once

#include <cuda.h>

#include <string>

#include "hostcuda/hostcuda.h"

namespace stillmap::conformance {

// name without `cu`, the CUDA version that introduced the signature we call, the suffix its symbol
// carries where a driver has no cuGetProcAddress.
// clang-format off
#define STILLMAP_RAW_CALLS(X)                                                                     \
  X(Init, 2000, "") X(DriverGetVersion, 2020, "") X(GetErrorName, 6000, "")                       \
  X(DeviceGet, 2000, "") X(DeviceGetCount, 2000, "") X(DeviceGetName, 2000, "")                   \
  X(DeviceGetAttribute, 2000, "") X(DeviceTotalMem, 3020, "_v2") X(DeviceCanAccessPeer, 4000, "") \
  X(DevicePrimaryCtxRetain, 7000, "") X(DevicePrimaryCtxRelease, 11000, "_v2")                    \
  X(CtxGetCurrent, 4000, "") X(CtxSetCurrent, 4000, "")                                           \
  X(MemGetInfo, 3020, "_v2") X(MemAlloc, 3020, "_v2") X(MemFree, 3020, "_v2")                     \
  X(MemHostAlloc, 2020, "") X(MemFreeHost, 2000, "")                                              \
  X(MemcpyHtoD, 3020, "_v2") X(MemcpyDtoH, 3020, "_v2") X(MemcpyDtoD, 3020, "_v2")                \
  X(MemcpyHtoDAsync, 3020, "_v2") X(MemcpyDtoHAsync, 3020, "_v2") X(MemcpyDtoDAsync, 3020, "_v2") \
  X(MemsetD8, 3020, "_v2") X(MemsetD32, 3020, "_v2") X(MemsetD8Async, 3020, "")                   \
  X(MemAddressReserve, 10020, "") X(MemAddressFree, 10020, "") X(MemCreate, 10020, "")            \
  X(MemRelease, 10020, "") X(MemMap, 10020, "") X(MemUnmap, 10020, "") X(MemSetAccess, 10020, "") \
  X(MemGetAccess, 10020, "") X(MemExportToShareableHandle, 10020, "")                             \
  X(MemImportFromShareableHandle, 10020, "") X(MemGetAllocationGranularity, 10020, "")            \
  X(MemGetAllocationPropertiesFromHandle, 10020, "") X(MemRetainAllocationHandle, 11000, "")      \
  X(MemGetAddressRange, 3020, "_v2") X(PointerGetAttribute, 4000, "")                             \
  X(PointerGetAttributes, 7000, "") X(PointerSetAttribute, 6000, "") X(IpcGetMemHandle, 4010, "") \
  X(StreamCreate, 2000, "") X(StreamDestroy, 4000, "_v2") X(StreamSynchronize, 2000, "")          \
  X(StreamQuery, 2000, "") X(StreamWaitEvent, 3020, "") X(StreamBeginCapture, 10010, "_v2")       \
  X(StreamEndCapture, 10000, "") X(StreamIsCapturing, 10000, "")                                  \
  X(ThreadExchangeStreamCaptureMode, 10010, "") X(GraphDestroy, 10000, "")                        \
  X(EventCreate, 2000, "") X(EventDestroy, 4000, "_v2") X(EventRecord, 2000, "")                  \
  X(EventQuery, 2000, "") X(EventSynchronize, 2000, "") X(LaunchKernel, 4000, "")                 \
  X(LaunchHostFunc, 10000, "") X(ModuleLoadData, 2000, "") X(ModuleGetFunction, 2000, "")         \
  X(ModuleUnload, 2000, "") X(MemAllocAsync, 11020, "") X(MemFreeAsync, 11020, "")                \
  X(DeviceGetDefaultMemPool, 11020, "") X(MemPoolTrimTo, 11020, "")

// hostcuda's own switches; null on a real driver.
#define STILLMAP_HOSTCUDA_CALLS(X) \
  X(config) X(occupy) X(get_counters) X(register_kernel) X(access) X(hold) X(release)
// clang-format on

struct raw_driver {
// The macro expands to the renamed declaration (cuMemAlloc_v2), whose type is the one we call.
#define STILLMAP_RAW_MEMBER(name, since, suffix) decltype(&::cu##name) name = nullptr;
  STILLMAP_RAW_CALLS(STILLMAP_RAW_MEMBER)
#undef STILLMAP_RAW_MEMBER
  // Signatures that newer headers changed under the same name are spelt out.
  CUresult(CUDAAPI *CtxSynchronize)() = nullptr;
  CUresult(CUDAAPI *GetProcAddress)(const char *, void **, int, cuuint64_t,
                                    CUdriverProcAddressQueryResult *) = nullptr;  // 12.0 and later

#define STILLMAP_HOSTCUDA_MEMBER(name) decltype(&::hostcuda_##name) hostcuda_##name = nullptr;
  STILLMAP_HOSTCUDA_CALLS(STILLMAP_HOSTCUDA_MEMBER)
#undef STILLMAP_HOSTCUDA_MEMBER

  std::string path;     // what was opened
  std::string missing;  // why there is no driver; empty: there is one

  bool is_hostcuda() const {
    return hostcuda_get_counters != nullptr;
  }
};

// Loaded at the first call; cuInit is not called here.
const raw_driver &cu();

}  // namespace stillmap::conformance
