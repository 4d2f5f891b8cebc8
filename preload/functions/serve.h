// What a wrapper does: it passes the call on, unless the library serves this function itself. Each served
// function is an overload for its number.
#pragma once

#include "preload/door.h"
#include "preload/functions/function_list.h"
#include "preload/service/memory/queued_work.h"

namespace stillmap::preload {

template <function>
struct numbered {};

// The caller of the function that is looked up through cuGetProcAddress: another interposer is not given what would
// lead back to it.
extern constinit thread_local const void *lookup_caller;
constexpr bool looks_up(function f) {
  return f == function::cuGetProcAddress || f == function::cuGetProcAddress_v2 ||
         f == function::cuGetProcAddress_v2_ptsz;
}

// Looks for what a wrapper passes on to, for a program that is linked to the function and so has looked up
// nothing; sets it. Null: no library that is loaded has it.
void *find_next(function f) noexcept;

// What a wrapper returns where no library has its function.
driver_code not_found(function f) noexcept;

template <function f, class... Arguments>
driver_code pass_on(Arguments... arguments) noexcept {
  void *next = next_of(f);
  if (next == nullptr) [[unlikely]] {
    next = find_next(f);
    if (next == nullptr) return not_found(f);
  }
  return reinterpret_cast<driver_code (*)(Arguments...)>(next)(arguments...);
}

template <function f, class... Arguments>
driver_code serve(numbered<f>, Arguments... arguments) noexcept {
  const driver_code result = pass_on<f>(arguments...);
  if constexpr (waits(f)) queued_work::note();
  return result;
}

#define STILLMAP_SERVED(symbol, ...) \
  driver_code serve(numbered<function::symbol>, __VA_ARGS__) noexcept;
// Memory: memory/allocation.cpp, memory/async_allocation.cpp.
STILLMAP_SERVED(cuMemAlloc_v2, word at, word bytes)
STILLMAP_SERVED(cuMemAllocPitch_v2, word at, word pitch, word width, word height, number element)
STILLMAP_SERVED(cuMemFree_v2, word at)
STILLMAP_SERVED(cuMemAllocAsync, word at, word bytes, word stream)
STILLMAP_SERVED(cuMemAllocAsync_ptsz, word at, word bytes, word stream)
STILLMAP_SERVED(cuMemAllocFromPoolAsync, word at, word bytes, word pool, word stream)
STILLMAP_SERVED(cuMemAllocFromPoolAsync_ptsz, word at, word bytes, word pool, word stream)
STILLMAP_SERVED(cuMemFreeAsync, word at, word stream)
STILLMAP_SERVED(cuMemFreeAsync_ptsz, word at, word stream)
// What decides how memory is served: memory/contexts.cpp, memory/captures.cpp, memory/async_allocation.cpp.
STILLMAP_SERVED(cuCtxSetCurrent, word context)
STILLMAP_SERVED(cuCtxPushCurrent_v2, word context)
STILLMAP_SERVED(cuCtxCreate_v2, word context, number flags, number device)
STILLMAP_SERVED(cuCtxCreate_v3, word context, word affinities, number count, number flags,
                number device)
STILLMAP_SERVED(cuCtxCreate_v4, word context, word parameters, number flags, number device)
STILLMAP_SERVED(cuGetExportTable, word table, word id)
STILLMAP_SERVED(cuDeviceSetMemPool, number device, word pool)
STILLMAP_SERVED(cuStreamBeginCapture, word stream)
STILLMAP_SERVED(cuStreamBeginCapture_ptsz, word stream)
STILLMAP_SERVED(cuStreamBeginCapture_v2, word stream, number mode)
STILLMAP_SERVED(cuStreamBeginCapture_v2_ptsz, word stream, number mode)
STILLMAP_SERVED(cuStreamBeginCaptureToGraph, word stream, word graph, word nodes, word edges,
                word count, number mode)
STILLMAP_SERVED(cuStreamBeginCaptureToGraph_ptsz, word stream, word graph, word nodes, word edges,
                word count, number mode)
STILLMAP_SERVED(cuStreamEndCapture, word stream, word graph)
STILLMAP_SERVED(cuStreamEndCapture_ptsz, word stream, word graph)
STILLMAP_SERVED(cuStreamDestroy_v2, word stream)
// The device's default pool: memory/default_pool.cpp.
STILLMAP_SERVED(cuMemPoolGetAttribute, word pool, number attribute, word value)
STILLMAP_SERVED(cuMemPoolTrimTo, word pool, word keep)
// What the program asks about memory: memory/queries.cpp, memory/nvml.cpp.
STILLMAP_SERVED(cuMemGetInfo_v2, word free, word total)
STILLMAP_SERVED(cuDeviceTotalMem_v2, word bytes, number device)
STILLMAP_SERVED(cuMemGetAddressRange_v2, word base, word bytes, word at)
STILLMAP_SERVED(cuPointerGetAttribute, word data, number attribute, word at)
STILLMAP_SERVED(cuPointerGetAttributes, number count, word attributes, word data, word at)
STILLMAP_SERVED(nvmlDeviceGetMemoryInfo, word device, word memory)
STILLMAP_SERVED(nvmlDeviceGetMemoryInfo_v2, word device, word memory)
// Memory of other kinds, which is counted: memory/other_memory.cpp.
STILLMAP_SERVED(cuMemAllocManaged, word at, word bytes, number flags)
STILLMAP_SERVED(cuMemCreate, word handle, word bytes, word properties, word flags)
STILLMAP_SERVED(cuMemRetainAllocationHandle, word handle, word at)
STILLMAP_SERVED(cuArrayCreate_v2, word array, word descriptor)
STILLMAP_SERVED(cuArray3DCreate_v2, word array, word descriptor)
STILLMAP_SERVED(cuMipmappedArrayCreate, word array, word descriptor, number levels)
// How the program finds the driver's functions: lookup/proc_address.cpp.
STILLMAP_SERVED(cuGetProcAddress, word name, word to, number version, word flags)
STILLMAP_SERVED(cuGetProcAddress_v2, word name, word to, number version, word flags, word status)
STILLMAP_SERVED(cuGetProcAddress_v2_ptsz, word name, word to, number version, word flags,
                word status)
#undef STILLMAP_SERVED

}  // namespace stillmap::preload
