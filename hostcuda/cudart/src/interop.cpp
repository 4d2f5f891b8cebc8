// Memory and events of other processes, entry points of the driver, the profiler.
#include <cstring>

#include "hostcuda/cudart/src/runtime.h"

namespace cudart {
namespace {

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle) &&
              sizeof(cudaIpcEventHandle_t) == sizeof(CUipcEventHandle));

// A function that the driver lacks is no error: the address is null, and the status says why.
cudaError_t find_entry_point(const char *symbol, void **out, int version, unsigned long long flags,
                             cudaDriverEntryPointQueryResult *status, bool per_thread) {
  if (symbol == nullptr || out == nullptr || flags > cudaEnablePerThreadDefaultStream)
    return cudaErrorInvalidValue;
  CUDART_TRY(initialise());
  if (per_thread && flags == cudaEnableDefault) flags = cudaEnablePerThreadDefaultStream;
  *out = nullptr;
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
  const CUresult r = CUDART_DRIVER(cuGetProcAddress)(symbol, out, version, flags, &found);
  if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_FOUND) return from_driver(r);
  if (r == CUDA_ERROR_NOT_FOUND && found == CU_GET_PROC_ADDRESS_SUCCESS)
    found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (status != nullptr) *status = static_cast<cudaDriverEntryPointQueryResult>(found);
  return cudaSuccess;
}

}  // namespace
}  // namespace cudart

using namespace cudart;

CUDART_ENTRY(cudaGetDriverEntryPoint,
             (const char *symbol, void **out, unsigned long long flags,
              cudaDriverEntryPointQueryResult *status),
             { return find_entry_point(symbol, out, CUDART_VERSION, flags, status, false); })
CUDART_ENTRY(cudaGetDriverEntryPoint_ptsz,
             (const char *symbol, void **out, unsigned long long flags,
              cudaDriverEntryPointQueryResult *status),
             { return find_entry_point(symbol, out, CUDART_VERSION, flags, status, true); })
#if CUDART_VERSION >= 12050
CUDART_ENTRY(cudaGetDriverEntryPointByVersion,
             (const char *symbol, void **out, unsigned version, unsigned long long flags,
              cudaDriverEntryPointQueryResult *status),
             {
               return find_entry_point(symbol, out, static_cast<int>(version), flags, status,
                                       false);
             })
CUDART_ENTRY(cudaGetDriverEntryPointByVersion_ptsz,
             (const char *symbol, void **out, unsigned version, unsigned long long flags,
              cudaDriverEntryPointQueryResult *status),
             {
               return find_entry_point(symbol, out, static_cast<int>(version), flags, status, true);
             })
#endif

CUDART_ENTRY(cudaIpcGetMemHandle, (cudaIpcMemHandle_t * out, void *at), {
  CUDART_TRY(bind());
  return from_driver(CUDART_DRIVER(cuIpcGetMemHandle)(same<CUipcMemHandle>(out), address_of(at)));
})
CUDART_ENTRY(cudaIpcOpenMemHandle, (void **out, cudaIpcMemHandle_t handle, unsigned flags), {
  CUDART_TRY(bind());
  CUipcMemHandle driver;
  std::memcpy(&driver, &handle, sizeof driver);
  return from_driver(
      CUDART_DRIVER(cuIpcOpenMemHandle)(reinterpret_cast<CUdeviceptr *>(out), driver, flags));
})
CUDART_FORWARD(cudaIpcCloseMemHandle, (void *at), cuIpcCloseMemHandle, (address_of(at)))
CUDART_FORWARD(cudaIpcGetEventHandle, (cudaIpcEventHandle_t * out, cudaEvent_t event),
               cuIpcGetEventHandle, (same<CUipcEventHandle>(out), event))
CUDART_ENTRY(cudaIpcOpenEventHandle, (cudaEvent_t * out, cudaIpcEventHandle_t handle), {
  CUDART_TRY(bind());
  CUipcEventHandle driver;
  std::memcpy(&driver, &handle, sizeof driver);
  return from_driver(CUDART_DRIVER(cuIpcOpenEventHandle)(out, driver));
})

CUDART_ENTRY(cudaProfilerStart, (void), { return driver_call<>{"cuProfilerStart"}(); })
CUDART_ENTRY(cudaProfilerStop, (void), { return driver_call<>{"cuProfilerStop"}(); })

// Returns a structure, so it cannot be among the functions that only return an error.
CUDART_EXPORT(cudaChannelFormatDesc)
cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind kind) {
  return {x, y, z, w, kind};
}
