// The functions that the service serves: X(symbol, parameters). All others are passed on.
#pragma once

#include <iterator>

#include "preload/functions/function_list.h"

// clang-format off
#define STILLMAP_SERVED_FUNCTIONS(X) \
  /* Memory: service/memory/allocation.cpp, service/memory/async_allocation.cpp. */ \
  X(cuMemAlloc_v2, (word at, word bytes)) \
  X(cuMemAllocPitch_v2, (word at, word pitch, word width, word height, number element)) \
  X(cuMemFree_v2, (word at)) \
  X(cuMemAllocAsync, (word at, word bytes, word stream)) \
  X(cuMemAllocAsync_ptsz, (word at, word bytes, word stream)) \
  X(cuMemAllocFromPoolAsync, (word at, word bytes, word pool, word stream)) \
  X(cuMemAllocFromPoolAsync_ptsz, (word at, word bytes, word pool, word stream)) \
  X(cuMemFreeAsync, (word at, word stream)) \
  X(cuMemFreeAsync_ptsz, (word at, word stream)) \
  /* What decides how memory is served: service/memory/contexts.cpp, service/memory/captures.cpp, service/memory/async_allocation.cpp. */ \
  X(cuCtxSetCurrent, (word context)) \
  X(cuCtxPushCurrent, (word context)) \
  X(cuCtxPushCurrent_v2, (word context)) \
  X(cuCtxAttach, (word to, number flags)) \
  X(cuCtxCreate, (word to, number flags, number device)) \
  X(cuCtxCreate_v2, (word to, number flags, number device)) \
  X(cuCtxCreate_v3, (word to, word affinities, number count, number flags, number device)) \
  X(cuCtxCreate_v4, (word to, word parameters, number flags, number device)) \
  X(cuGLCtxCreate, (word to, number flags, number device)) \
  X(cuGLCtxCreate_v2, (word to, number flags, number device)) \
  X(cuVDPAUCtxCreate, (word to, number flags, number device, number display, word get_proc_address)) \
  X(cuVDPAUCtxCreate_v2, (word to, number flags, number device, number display, word get_proc_address)) \
  X(cuGetExportTable, (word table, word id)) \
  /* Memory ends with its context: service/memory/ended_contexts.cpp. */ \
  X(cuCtxDetach, (word context)) \
  X(cuCtxDestroy, (word context)) \
  X(cuCtxDestroy_v2, (word context)) \
  X(cuDevicePrimaryCtxRelease, (number device)) \
  X(cuDevicePrimaryCtxRelease_v2, (number device)) \
  X(cuDevicePrimaryCtxReset, (number device)) \
  X(cuDevicePrimaryCtxReset_v2, (number device)) \
  X(cuDeviceSetMemPool, (number device, word pool)) \
  X(cuStreamBeginCapture, (word stream)) \
  X(cuStreamBeginCapture_ptsz, (word stream)) \
  X(cuStreamBeginCapture_v2, (word stream, number mode)) \
  X(cuStreamBeginCapture_v2_ptsz, (word stream, number mode)) \
  X(cuStreamBeginCaptureToGraph, (word stream, word graph, word nodes, word edges, word count, number mode)) \
  X(cuStreamBeginCaptureToGraph_ptsz, (word stream, word graph, word nodes, word edges, word count, number mode)) \
  X(cuStreamBeginRecaptureToGraph, (word stream, number mode, word graph, word callback, word data)) \
  X(cuStreamBeginRecaptureToGraph_ptsz, (word stream, number mode, word graph, word callback, word data)) \
  X(cuStreamEndCapture, (word stream, word graph)) \
  X(cuStreamEndCapture_ptsz, (word stream, word graph)) \
  X(cuStreamDestroy, (word stream)) \
  X(cuStreamDestroy_v2, (word stream)) \
  /* The device's default pool: service/memory/default_pool.cpp. */ \
  X(cuMemPoolGetAttribute, (word pool, number attribute, word value)) \
  X(cuMemPoolSetAttribute, (word pool, number attribute, word value)) \
  X(cuMemPoolTrimTo, (word pool, word keep)) \
  /* What the program asks about memory: service/memory/queries.cpp, service/memory/nvml.cpp. */ \
  X(cuMemGetInfo_v2, (word free, word total)) \
  X(cuDeviceTotalMem_v2, (word bytes, number device)) \
  X(cuMemGetAddressRange_v2, (word base, word bytes, word at)) \
  X(cuPointerGetAttribute, (word data, number attribute, word at)) \
  X(cuPointerGetAttributes, (number count, word attributes, word data, word at)) \
  X(nvmlDeviceGetMemoryInfo, (word device, word memory)) \
  X(nvmlDeviceGetMemoryInfo_v2, (word device, word memory)) \
  /* Memory of other processes: service/ipc/ipc.cpp. */ \
  X(cuIpcGetMemHandle, (word handle, word at)) \
  X(cuIpcOpenMemHandle, (word at, bytes_64 handle, number flags)) \
  X(cuIpcOpenMemHandle_v2, (word at, bytes_64 handle, number flags)) \
  X(cuIpcCloseMemHandle, (word at)) \
  /* Memory of other kinds, which the driver serves within the limit: service/memory/other_memory.cpp. */ \
  X(cuMemAllocManaged, (word at, word bytes, number flags)) \
  X(cuMemCreate, (word handle, word bytes, word properties, word flags)) \
  X(cuMemRelease, (word handle)) \
  X(cuMemMap, (word at, word bytes, word offset, word handle, word flags)) \
  X(cuMemUnmap, (word at, word bytes)) \
  X(cuMemRetainAllocationHandle, (word handle, word at)) \
  X(cuArrayCreate_v2, (word array, word descriptor)) \
  X(cuArray3DCreate_v2, (word array, word descriptor)) \
  X(cuMipmappedArrayCreate, (word array, word descriptor, number levels)) \
  X(cuArrayDestroy, (word array)) \
  X(cuMipmappedArrayDestroy, (word array))
// clang-format on

namespace stillmap::preload {

constexpr bool is_served(function f) {
  constexpr function all[] = {
#define STILLMAP_SERVED(symbol, parameters) function::symbol,
      STILLMAP_SERVED_FUNCTIONS(STILLMAP_SERVED)
#undef STILLMAP_SERVED
  };
  for (const function served : all) {
    if (served == f) return true;
  }
  return false;
}

}  // namespace stillmap::preload
