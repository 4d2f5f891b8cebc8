// Versions, the devices, the device of a thread, its synchronisation and its limits.
#include "hostcuda/cudart/src/device_state.h"
#include "hostcuda/cudart/src/runtime.h"

using namespace cudart;

CUDART_ENTRY(cudaRuntimeGetVersion, (int *version), {
  if (version == nullptr) return cudaErrorInvalidValue;
  *version = CUDART_VERSION;
  return cudaSuccess;
})

CUDART_ENTRY(cudaDriverGetVersion, (int *version), {
  if (version == nullptr) return cudaErrorInvalidValue;
  *version = 0;  // documented: no driver is no error
  if (!have_driver()) return cudaSuccess;
  return from_driver(CUDART_DRIVER(cuDriverGetVersion)(version));
})

CUDART_ENTRY(cudaGetDeviceCount, (int *count), {
  if (count == nullptr) return cudaErrorInvalidValue;
  *count = 0;
  CUDART_TRY(initialise());
  CUDART_TRY(CUDART_DRIVER(cuDeviceGetCount)(count));
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
})

CUDART_ENTRY(cudaGetDevice, (int *device), {
  if (device == nullptr) return cudaErrorInvalidValue;
  CUDART_TRY(initialise());
  *device = current_device();
  return cudaSuccess;
})

namespace {

cudaError_t check_device(int device) {
  CUDART_TRY(initialise());
  CUdevice handle = 0;
  return from_driver(CUDART_DRIVER(cuDeviceGet)(&handle, device));
}

cudaError_t set_device_flags(int device, unsigned flags) {
  if ((flags & ~static_cast<unsigned>(cudaDeviceMask)) != 0) return cudaErrorInvalidValue;
  // Mapped host memory needs no flag where addresses are unified.
  const unsigned wanted = flags & ~static_cast<unsigned>(cudaDeviceMapHost);
  return from_driver(CUDART_DRIVER(cuDevicePrimaryCtxSetFlags)(device, wanted));
}

}  // namespace

// As of CUDA 12 this creates the primary context.
CUDART_ENTRY(cudaSetDevice, (int device), {
  CUDART_TRY(check_device(device));
  return bind_device(device);
})

CUDART_ENTRY(cudaInitDevice, (int device, unsigned device_flags, unsigned flags), {
  if ((flags & ~static_cast<unsigned>(cudaInitDeviceFlagsAreValid)) != 0)
    return cudaErrorInvalidValue;
  CUDART_TRY(check_device(device));
  if ((flags & cudaInitDeviceFlagsAreValid) != 0)
    CUDART_TRY(set_device_flags(device, device_flags));
  CUcontext context = nullptr;
  return primary_context(device, &context);
})

CUDART_ENTRY(cudaSetDeviceFlags, (unsigned flags), {
  CUDART_TRY(initialise());
  return set_device_flags(current_device(), flags);
})

CUDART_ENTRY(cudaGetDeviceFlags, (unsigned *flags), {
  if (flags == nullptr) return cudaErrorInvalidValue;
  CUDART_TRY(initialise());
  int active = 0;
  CUDART_TRY(CUDART_DRIVER(cuDevicePrimaryCtxGetState)(current_device(), flags, &active));
  *flags |= cudaDeviceMapHost;
  return cudaSuccess;
})

CUDART_FORWARD(cudaDeviceSynchronize, (void), cuCtxSynchronize, ())

CUDART_ENTRY(cudaDeviceReset, (void), {
  CUDART_TRY(initialise());
  return reset_device(current_device());
})

CUDART_FORWARD(cudaDeviceSetLimit, (cudaLimit limit, size_t value), cuCtxSetLimit,
               (static_cast<CUlimit>(limit), value))
CUDART_FORWARD(cudaDeviceGetLimit, (size_t * value, cudaLimit limit), cuCtxGetLimit,
               (value, static_cast<CUlimit>(limit)))
CUDART_FORWARD(cudaDeviceGetCacheConfig, (cudaFuncCache * config), cuCtxGetCacheConfig,
               (same<CUfunc_cache>(config)))
CUDART_FORWARD(cudaDeviceSetCacheConfig, (cudaFuncCache config), cuCtxSetCacheConfig,
               (static_cast<CUfunc_cache>(config)))
CUDART_FORWARD(cudaDeviceGetSharedMemConfig, (cudaSharedMemConfig * config),
               cuCtxGetSharedMemConfig, (same<CUsharedconfig>(config)))
CUDART_FORWARD(cudaDeviceSetSharedMemConfig, (cudaSharedMemConfig config), cuCtxSetSharedMemConfig,
               (static_cast<CUsharedconfig>(config)))
CUDART_FORWARD(cudaDeviceGetStreamPriorityRange, (int *least, int *greatest),
               cuCtxGetStreamPriorityRange, (least, greatest))
CUDART_FORWARD(cudaCtxResetPersistingL2Cache, (void), cuCtxResetPersistingL2Cache, ())
CUDART_FORWARD(cudaDeviceFlushGPUDirectRDMAWrites,
               (cudaFlushGPUDirectRDMAWritesTarget target, cudaFlushGPUDirectRDMAWritesScope scope),
               cuFlushGPUDirectRDMAWrites,
               (static_cast<CUflushGPUDirectRDMAWritesTarget>(target),
                static_cast<CUflushGPUDirectRDMAWritesScope>(scope)))

// ---- Peers

CUDART_DEVICE_FORWARD(cudaDeviceCanAccessPeer, (int *can, int device, int peer),
                      cuDeviceCanAccessPeer, (can, device, peer))

CUDART_DEVICE_FORWARD(cudaDeviceGetP2PAttribute,
                      (int *value, cudaDeviceP2PAttr attribute, int source, int destination),
                      cuDeviceGetP2PAttribute,
                      (value, static_cast<CUdevice_P2PAttribute>(attribute), source, destination))

CUDART_ENTRY(cudaDeviceEnablePeerAccess, (int peer, unsigned flags), {
  CUDART_TRY(check_device(peer));
  CUDART_TRY(bind());
  if (peer == current_device()) return cudaErrorInvalidDevice;
  CUcontext context = nullptr;
  CUDART_TRY(primary_context(peer, &context));
  return from_driver(CUDART_DRIVER(cuCtxEnablePeerAccess)(context, flags));
})

CUDART_ENTRY(cudaDeviceDisablePeerAccess, (int peer), {
  CUDART_TRY(check_device(peer));
  CUDART_TRY(bind());
  CUcontext context = nullptr;
  CUDART_TRY(primary_context(peer, &context));
  return from_driver(CUDART_DRIVER(cuCtxDisablePeerAccess)(context));
})

// ---- PCI

CUDART_DEVICE_FORWARD(cudaDeviceGetByPCIBusId, (int *device, const char *bus_id),
                      cuDeviceGetByPCIBusId, (device, bus_id))

CUDART_DEVICE_FORWARD(cudaDeviceGetPCIBusId, (char *bus_id, int length, int device),
                      cuDeviceGetPCIBusId, (bus_id, length, device))

// ---- What CUDA 12 still has under older names

#if CUDART_MAJOR < 13
CUDART_FORWARD(cudaThreadSynchronize, (void), cuCtxSynchronize, ())
CUDART_ENTRY(cudaThreadExit, (void), { return cudaDeviceReset(); })
CUDART_FORWARD(cudaThreadSetLimit, (cudaLimit limit, size_t value), cuCtxSetLimit,
               (static_cast<CUlimit>(limit), value))
CUDART_FORWARD(cudaThreadGetLimit, (size_t * value, cudaLimit limit), cuCtxGetLimit,
               (value, static_cast<CUlimit>(limit)))
CUDART_FORWARD(cudaThreadGetCacheConfig, (cudaFuncCache * config), cuCtxGetCacheConfig,
               (same<CUfunc_cache>(config)))
CUDART_FORWARD(cudaThreadSetCacheConfig, (cudaFuncCache config), cuCtxSetCacheConfig,
               (static_cast<CUfunc_cache>(config)))
#endif
