// Device attributes, and the structure that has most of them.
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include "hostcuda/cudart/src/runtime.h"

namespace cudart {
namespace {

// The numbers of the runtime's attributes are the driver's.
static_assert(static_cast<int>(cudaDevAttrMaxThreadsPerBlock) ==
                  CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK &&
              static_cast<int>(cudaDevAttrComputeCapabilityMinor) ==
                  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR &&
              static_cast<int>(cudaDevAttrMemoryPoolSupportedHandleTypes) ==
                  CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES);

// An attribute that the driver does not know is 0, as one that the device lacks.
int attribute_or_zero(int device, int attribute) {
  int value = 0;
  const CUresult r = CUDART_DRIVER(cuDeviceGetAttribute)(
      &value, static_cast<CUdevice_attribute>(attribute), device);
  return r == CUDA_SUCCESS ? value : 0;
}

cudaError_t fill_properties(cudaDeviceProp *p, int device) {
  if (p == nullptr) return cudaErrorInvalidValue;
  CUDART_TRY(initialise());
  CUdevice handle = 0;
  CUDART_TRY(CUDART_DRIVER(cuDeviceGet)(&handle, device));
  std::memset(p, 0, sizeof *p);
  CUDART_TRY(CUDART_DRIVER(cuDeviceGetName)(p->name, sizeof p->name, handle));
  CUuuid uuid{};
  CUDART_TRY(CUDART_DRIVER(cuDeviceGetUuid)(&uuid, handle));
  std::memcpy(&p->uuid, &uuid, sizeof p->uuid);
  CUDART_TRY(CUDART_DRIVER(cuDeviceTotalMem)(&p->totalGlobalMem, handle));

  const auto set = [&](auto &field, int attribute) {
    field =
        static_cast<std::remove_reference_t<decltype(field)>>(attribute_or_zero(handle, attribute));
  };
  const auto set_each = [&](int *fields, std::initializer_list<int> attributes) {
    for (const int attribute : attributes) *fields++ = attribute_or_zero(handle, attribute);
  };
  set(p->sharedMemPerBlock, cudaDevAttrMaxSharedMemoryPerBlock);
  set(p->regsPerBlock, cudaDevAttrMaxRegistersPerBlock);
  set(p->warpSize, cudaDevAttrWarpSize);
  set(p->memPitch, cudaDevAttrMaxPitch);
  set(p->maxThreadsPerBlock, cudaDevAttrMaxThreadsPerBlock);
  set_each(p->maxThreadsDim,
           {cudaDevAttrMaxBlockDimX, cudaDevAttrMaxBlockDimY, cudaDevAttrMaxBlockDimZ});
  set_each(p->maxGridSize,
           {cudaDevAttrMaxGridDimX, cudaDevAttrMaxGridDimY, cudaDevAttrMaxGridDimZ});
  set(p->totalConstMem, cudaDevAttrTotalConstantMemory);
  set(p->major, cudaDevAttrComputeCapabilityMajor);
  set(p->minor, cudaDevAttrComputeCapabilityMinor);
  set(p->textureAlignment, cudaDevAttrTextureAlignment);
  set(p->texturePitchAlignment, cudaDevAttrTexturePitchAlignment);
  set(p->multiProcessorCount, cudaDevAttrMultiProcessorCount);
  set(p->integrated, cudaDevAttrIntegrated);
  set(p->canMapHostMemory, cudaDevAttrCanMapHostMemory);
  set(p->maxTexture1D, cudaDevAttrMaxTexture1DWidth);
  set(p->maxTexture1DMipmap, cudaDevAttrMaxTexture1DMipmappedWidth);
  set_each(p->maxTexture2D, {cudaDevAttrMaxTexture2DWidth, cudaDevAttrMaxTexture2DHeight});
  set_each(p->maxTexture2DMipmap,
           {cudaDevAttrMaxTexture2DMipmappedWidth, cudaDevAttrMaxTexture2DMipmappedHeight});
  set_each(p->maxTexture2DLinear,
           {cudaDevAttrMaxTexture2DLinearWidth, cudaDevAttrMaxTexture2DLinearHeight,
            cudaDevAttrMaxTexture2DLinearPitch});
  set_each(p->maxTexture2DGather,
           {cudaDevAttrMaxTexture2DGatherWidth, cudaDevAttrMaxTexture2DGatherHeight});
  set_each(p->maxTexture3D, {cudaDevAttrMaxTexture3DWidth, cudaDevAttrMaxTexture3DHeight,
                             cudaDevAttrMaxTexture3DDepth});
  set_each(p->maxTexture3DAlt, {cudaDevAttrMaxTexture3DWidthAlt, cudaDevAttrMaxTexture3DHeightAlt,
                                cudaDevAttrMaxTexture3DDepthAlt});
  set(p->maxTextureCubemap, cudaDevAttrMaxTextureCubemapWidth);
  set_each(p->maxTexture1DLayered,
           {cudaDevAttrMaxTexture1DLayeredWidth, cudaDevAttrMaxTexture1DLayeredLayers});
  set_each(p->maxTexture2DLayered,
           {cudaDevAttrMaxTexture2DLayeredWidth, cudaDevAttrMaxTexture2DLayeredHeight,
            cudaDevAttrMaxTexture2DLayeredLayers});
  set_each(p->maxTextureCubemapLayered,
           {cudaDevAttrMaxTextureCubemapLayeredWidth, cudaDevAttrMaxTextureCubemapLayeredLayers});
  set(p->maxSurface1D, cudaDevAttrMaxSurface1DWidth);
  set_each(p->maxSurface2D, {cudaDevAttrMaxSurface2DWidth, cudaDevAttrMaxSurface2DHeight});
  set_each(p->maxSurface3D, {cudaDevAttrMaxSurface3DWidth, cudaDevAttrMaxSurface3DHeight,
                             cudaDevAttrMaxSurface3DDepth});
  set_each(p->maxSurface1DLayered,
           {cudaDevAttrMaxSurface1DLayeredWidth, cudaDevAttrMaxSurface1DLayeredLayers});
  set_each(p->maxSurface2DLayered,
           {cudaDevAttrMaxSurface2DLayeredWidth, cudaDevAttrMaxSurface2DLayeredHeight,
            cudaDevAttrMaxSurface2DLayeredLayers});
  set(p->maxSurfaceCubemap, cudaDevAttrMaxSurfaceCubemapWidth);
  set_each(p->maxSurfaceCubemapLayered,
           {cudaDevAttrMaxSurfaceCubemapLayeredWidth, cudaDevAttrMaxSurfaceCubemapLayeredLayers});
  set(p->surfaceAlignment, cudaDevAttrSurfaceAlignment);
  set(p->concurrentKernels, cudaDevAttrConcurrentKernels);
  set(p->ECCEnabled, cudaDevAttrEccEnabled);
  set(p->pciBusID, cudaDevAttrPciBusId);
  set(p->pciDeviceID, cudaDevAttrPciDeviceId);
  set(p->pciDomainID, cudaDevAttrPciDomainId);
  set(p->tccDriver, cudaDevAttrTccDriver);
  set(p->asyncEngineCount, cudaDevAttrAsyncEngineCount);
  set(p->unifiedAddressing, cudaDevAttrUnifiedAddressing);
  set(p->memoryBusWidth, cudaDevAttrGlobalMemoryBusWidth);
  set(p->l2CacheSize, cudaDevAttrL2CacheSize);
  set(p->persistingL2CacheMaxSize, cudaDevAttrMaxPersistingL2CacheSize);
  set(p->maxThreadsPerMultiProcessor, cudaDevAttrMaxThreadsPerMultiProcessor);
  set(p->streamPrioritiesSupported, cudaDevAttrStreamPrioritiesSupported);
  set(p->globalL1CacheSupported, cudaDevAttrGlobalL1CacheSupported);
  set(p->localL1CacheSupported, cudaDevAttrLocalL1CacheSupported);
  set(p->sharedMemPerMultiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  set(p->regsPerMultiprocessor, cudaDevAttrMaxRegistersPerMultiprocessor);
  set(p->managedMemory, cudaDevAttrManagedMemory);
  set(p->isMultiGpuBoard, cudaDevAttrIsMultiGpuBoard);
  set(p->multiGpuBoardGroupID, cudaDevAttrMultiGpuBoardGroupID);
  set(p->hostNativeAtomicSupported, cudaDevAttrHostNativeAtomicSupported);
  set(p->pageableMemoryAccess, cudaDevAttrPageableMemoryAccess);
  set(p->concurrentManagedAccess, cudaDevAttrConcurrentManagedAccess);
  set(p->computePreemptionSupported, cudaDevAttrComputePreemptionSupported);
  set(p->canUseHostPointerForRegisteredMem, cudaDevAttrCanUseHostPointerForRegisteredMem);
  set(p->cooperativeLaunch, cudaDevAttrCooperativeLaunch);
  set(p->sharedMemPerBlockOptin, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  set(p->pageableMemoryAccessUsesHostPageTables, cudaDevAttrPageableMemoryAccessUsesHostPageTables);
  set(p->directManagedMemAccessFromHost, cudaDevAttrDirectManagedMemAccessFromHost);
  set(p->maxBlocksPerMultiProcessor, cudaDevAttrMaxBlocksPerMultiprocessor);
  set(p->accessPolicyMaxWindowSize, cudaDevAttrMaxAccessPolicyWindowSize);
  set(p->reservedSharedMemPerBlock, cudaDevAttrReservedSharedMemoryPerBlock);
  set(p->hostRegisterSupported, cudaDevAttrHostRegisterSupported);
  set(p->sparseCudaArraySupported, cudaDevAttrSparseCudaArraySupported);
  set(p->hostRegisterReadOnlySupported, cudaDevAttrHostRegisterReadOnlySupported);
  set(p->timelineSemaphoreInteropSupported, cudaDevAttrTimelineSemaphoreInteropSupported);
  set(p->memoryPoolsSupported, cudaDevAttrMemoryPoolsSupported);
  set(p->gpuDirectRDMASupported, cudaDevAttrGPUDirectRDMASupported);
  set(p->gpuDirectRDMAFlushWritesOptions, cudaDevAttrGPUDirectRDMAFlushWritesOptions);
  set(p->gpuDirectRDMAWritesOrdering, cudaDevAttrGPUDirectRDMAWritesOrdering);
  set(p->memoryPoolSupportedHandleTypes, cudaDevAttrMemoryPoolSupportedHandleTypes);
  set(p->deferredMappingCudaArraySupported, cudaDevAttrDeferredMappingCudaArraySupported);
  set(p->ipcEventSupported, cudaDevAttrIpcEventSupport);
  set(p->clusterLaunch, cudaDevAttrClusterLaunch);
  set(p->unifiedFunctionPointers, CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS);
#if CUDART_MAJOR < 13
  set(p->clockRate, cudaDevAttrClockRate);
  set(p->deviceOverlap, cudaDevAttrGpuOverlap);
  set(p->kernelExecTimeoutEnabled, cudaDevAttrKernelExecTimeout);
  set(p->computeMode, cudaDevAttrComputeMode);
  set(p->maxTexture1DLinear, cudaDevAttrMaxTexture1DLinearWidth);
  set(p->memoryClockRate, cudaDevAttrMemoryClockRate);
  set(p->singleToDoublePrecisionPerfRatio, cudaDevAttrSingleToDoublePrecisionPerfRatio);
  set(p->cooperativeMultiDeviceLaunch, cudaDevAttrCooperativeMultiDeviceLaunch);
#else
  set(p->deviceNumaConfig, cudaDevAttrNumaConfig);
  set(p->deviceNumaId, cudaDevAttrNumaId);
  set(p->mpsEnabled, cudaDevAttrMpsEnabled);
  set(p->hostNumaId, cudaDevAttrHostNumaId);
  set(p->gpuPciDeviceID, cudaDevAttrGpuPciDeviceId);
  set(p->gpuPciSubsystemID, cudaDevAttrGpuPciSubsystemId);
  set(p->hostNumaMultinodeIpcSupported, cudaDevAttrHostNumaMultinodeIpcSupported);
#endif
  return cudaSuccess;
}

}  // namespace
}  // namespace cudart

using namespace cudart;

#if CUDART_MAJOR < 13
CUDART_ENTRY(cudaGetDeviceProperties_v2, (cudaDeviceProp * out, int device),
             { return fill_properties(out, device); })
#else
CUDART_ENTRY(cudaGetDeviceProperties, (cudaDeviceProp * out, int device),
             { return fill_properties(out, device); })
#endif

CUDART_ENTRY(cudaDeviceGetAttribute, (int *value, cudaDeviceAttr attribute, int device), {
  CUDART_TRY(initialise());
  return from_driver(CUDART_DRIVER(cuDeviceGetAttribute)(
      value, static_cast<CUdevice_attribute>(attribute), device));
})
