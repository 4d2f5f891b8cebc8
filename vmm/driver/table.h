// The driver's functions as function pointers, each with the signature that Stillmap calls and the
// CUDA version that introduced it. The types are written out here rather than taken from the
// toolkit's cudaTypedefs.h, so that any toolkit from 12.0 compiles them.
// docs/driver.md#the-driver-seam
#pragma once

#include <cuda.h>

#include <cstddef>

// X(call, symbol to look up in the library, CUDA version that introduced this signature,
// parameters) Where a later version has another signature (cuCtxSynchronize at 13.0), asking for
// this version still gives this one.
#define STILLMAP_DRIVER_SYMBOLS(X)                                                                \
  X(Init, "cuInit", 2000, (unsigned flags))                                                       \
  X(DriverGetVersion, "cuDriverGetVersion", 2020, (int *version))                                 \
  X(GetErrorName, "cuGetErrorName", 6000, (CUresult code, const char **text))                     \
  X(GetErrorString, "cuGetErrorString", 6000, (CUresult code, const char **text))                 \
  X(DeviceGet, "cuDeviceGet", 2000, (CUdevice * device, int ordinal))                             \
  X(DeviceGetCount, "cuDeviceGetCount", 2000, (int *count))                                       \
  X(DeviceGetName, "cuDeviceGetName", 2000, (char *name, int length, CUdevice device))            \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", 2000,                                             \
    (int *value, CUdevice_attribute attribute, CUdevice device))                                  \
  X(DeviceTotalMem, "cuDeviceTotalMem_v2", 3020, (std::size_t * bytes, CUdevice device))          \
  X(DeviceGetUuid, "cuDeviceGetUuid", 9020, (CUuuid * uuid, CUdevice device))                     \
  X(DeviceCanAccessPeer, "cuDeviceCanAccessPeer", 4000,                                           \
    (int *can, CUdevice device, CUdevice peer))                                                   \
  X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000,                                     \
    (CUcontext * context, CUdevice device))                                                       \
  X(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000, (CUdevice device))                \
  X(CtxGetCurrent, "cuCtxGetCurrent", 4000, (CUcontext * context))                                \
  X(CtxPushCurrent, "cuCtxPushCurrent_v2", 4000, (CUcontext context))                             \
  X(CtxPopCurrent, "cuCtxPopCurrent_v2", 4000, (CUcontext * context))                             \
  X(CtxSynchronize, "cuCtxSynchronize", 2000, ())                                                 \
  X(MemGetInfo, "cuMemGetInfo_v2", 3020, (std::size_t * free, std::size_t * total))               \
  X(MemAlloc, "cuMemAlloc_v2", 3020, (CUdeviceptr * at, std::size_t bytes))                       \
  X(MemFree, "cuMemFree_v2", 3020, (CUdeviceptr at))                                              \
  X(MemAllocAsync, "cuMemAllocAsync", 11020,                                                      \
    (CUdeviceptr * at, std::size_t bytes, CUstream stream))                                       \
  X(MemFreeAsync, "cuMemFreeAsync", 11020, (CUdeviceptr at, CUstream stream))                     \
  X(MemHostAlloc, "cuMemHostAlloc", 2020, (void **at, std::size_t bytes, unsigned flags))         \
  X(MemFreeHost, "cuMemFreeHost", 2000, (void *at))                                               \
  X(MemcpyHtoD, "cuMemcpyHtoD_v2", 3020, (CUdeviceptr to, const void *from, std::size_t bytes))   \
  X(MemcpyDtoH, "cuMemcpyDtoH_v2", 3020, (void *to, CUdeviceptr from, std::size_t bytes))         \
  X(MemcpyDtoD, "cuMemcpyDtoD_v2", 3020, (CUdeviceptr to, CUdeviceptr from, std::size_t bytes))   \
  X(MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", 3020,                                                \
    (CUdeviceptr to, const void *from, std::size_t bytes, CUstream stream))                       \
  X(MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", 3020,                                                \
    (void *to, CUdeviceptr from, std::size_t bytes, CUstream stream))                             \
  X(MemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", 3020,                                                \
    (CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream))                       \
  X(MemsetD8Async, "cuMemsetD8Async", 3020,                                                       \
    (CUdeviceptr at, unsigned char value, std::size_t bytes, CUstream stream))                    \
  X(MemAddressReserve, "cuMemAddressReserve", 10020,                                              \
    (CUdeviceptr * at, std::size_t bytes, std::size_t alignment, CUdeviceptr hint,                \
     unsigned long long flags))                                                                   \
  X(MemAddressFree, "cuMemAddressFree", 10020, (CUdeviceptr at, std::size_t bytes))               \
  X(MemCreate, "cuMemCreate", 10020,                                                              \
    (CUmemGenericAllocationHandle * handle, std::size_t bytes, const CUmemAllocationProp *what,   \
     unsigned long long flags))                                                                   \
  X(MemRelease, "cuMemRelease", 10020, (CUmemGenericAllocationHandle handle))                     \
  X(MemMap, "cuMemMap", 10020,                                                                    \
    (CUdeviceptr at, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle,  \
     unsigned long long flags))                                                                   \
  X(MemUnmap, "cuMemUnmap", 10020, (CUdeviceptr at, std::size_t bytes))                           \
  X(MemSetAccess, "cuMemSetAccess", 10020,                                                        \
    (CUdeviceptr at, std::size_t bytes, const CUmemAccessDesc *grants, std::size_t count))        \
  X(MemGetAccess, "cuMemGetAccess", 10020,                                                        \
    (unsigned long long *flags, const CUmemLocation *who, CUdeviceptr at))                        \
  X(MemExportToShareableHandle, "cuMemExportToShareableHandle", 10020,                            \
    (void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,              \
     unsigned long long flags))                                                                   \
  X(MemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020,                        \
    (CUmemGenericAllocationHandle * handle, void *os_handle, CUmemAllocationHandleType type))     \
  X(MemGetAllocationGranularity, "cuMemGetAllocationGranularity", 10020,                          \
    (std::size_t * bytes, const CUmemAllocationProp *what,                                        \
     CUmemAllocationGranularity_flags option))                                                    \
  X(MemGetAllocationPropertiesFromHandle, "cuMemGetAllocationPropertiesFromHandle", 10020,        \
    (CUmemAllocationProp * what, CUmemGenericAllocationHandle handle))                            \
  X(MemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000,                              \
    (CUmemGenericAllocationHandle * handle, void *at))                                            \
  X(StreamCreate, "cuStreamCreate", 2000, (CUstream * stream, unsigned flags))                    \
  X(StreamDestroy, "cuStreamDestroy_v2", 4000, (CUstream stream))                                 \
  X(StreamSynchronize, "cuStreamSynchronize", 2000, (CUstream stream))                            \
  X(StreamQuery, "cuStreamQuery", 2000, (CUstream stream))                                        \
  X(StreamWaitEvent, "cuStreamWaitEvent", 3020, (CUstream stream, CUevent event, unsigned flags)) \
  X(StreamIsCapturing, "cuStreamIsCapturing", 10000,                                              \
    (CUstream stream, CUstreamCaptureStatus * status))                                            \
  X(ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", 10010,                  \
    (CUstreamCaptureMode * mode))                                                                 \
  X(EventCreate, "cuEventCreate", 2000, (CUevent * event, unsigned flags))                        \
  X(EventDestroy, "cuEventDestroy_v2", 4000, (CUevent event))                                     \
  X(EventRecord, "cuEventRecord", 2000, (CUevent event, CUstream stream))                         \
  X(EventQuery, "cuEventQuery", 2000, (CUevent event))                                            \
  X(EventSynchronize, "cuEventSynchronize", 2000, (CUevent event))                                \
  X(ModuleLoadData, "cuModuleLoadData", 2000, (CUmodule * module, const void *image))             \
  X(ModuleUnload, "cuModuleUnload", 2000, (CUmodule module))                                      \
  X(ModuleGetFunction, "cuModuleGetFunction", 2000,                                               \
    (CUfunction * function, CUmodule module, const char *name))                                   \
  X(LaunchKernel, "cuLaunchKernel", 4000,                                                         \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,    \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **params,   \
     void **extra))                                                                               \
  X(CheckpointProcessGetState, "cuCheckpointProcessGetState", 12080, (int pid, int *state))       \
  X(CheckpointProcessLock, "cuCheckpointProcessLock", 12080, (int pid, void *how))                \
  X(CheckpointProcessCheckpoint, "cuCheckpointProcessCheckpoint", 12080, (int pid, void *how))    \
  X(CheckpointProcessRestore, "cuCheckpointProcessRestore", 12080, (int pid, void *how))          \
  X(CheckpointProcessUnlock, "cuCheckpointProcessUnlock", 12080, (int pid, void *how))            \
  X(CheckpointProcessGetRestoreThreadId, "cuCheckpointProcessGetRestoreThreadId", 12080,          \
    (int pid, int *thread))

namespace stillmap {

// A pointer is null where the driver is too old for the function, or lacks it.
struct driver_table {
#define STILLMAP_POINTER(call, symbol, since, parameters) \
  CUresult(CUDAAPI *call) parameters = nullptr;
  STILLMAP_DRIVER_SYMBOLS(STILLMAP_POINTER)
#undef STILLMAP_POINTER
};

}  // namespace stillmap
