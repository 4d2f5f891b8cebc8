// Attributes and occupancy of kernels.
#include "hostcuda/cudart/src/registration.h"

namespace cudart {
namespace {

cudaError_t function_attributes_of(const void *function, cudaFuncAttributes *out) {
  if (out == nullptr) return cudaErrorInvalidValue;
  CUfunction kernel = nullptr;
  CUDART_TRY(find_function(function, &kernel));
  const auto value = [&](CUfunction_attribute attribute) {
    int v = 0;
    const CUresult r = CUDART_DRIVER(cuFuncGetAttribute)(&v, attribute, kernel);
    return r == CUDA_SUCCESS ? v : 0;
  };
  *out = {};
  out->maxThreadsPerBlock = value(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  out->sharedSizeBytes = static_cast<size_t>(value(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
  out->constSizeBytes = static_cast<size_t>(value(CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES));
  out->localSizeBytes = static_cast<size_t>(value(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES));
  out->numRegs = value(CU_FUNC_ATTRIBUTE_NUM_REGS);
  out->ptxVersion = value(CU_FUNC_ATTRIBUTE_PTX_VERSION);
  out->binaryVersion = value(CU_FUNC_ATTRIBUTE_BINARY_VERSION);
  out->cacheModeCA = value(CU_FUNC_ATTRIBUTE_CACHE_MODE_CA);
  out->maxDynamicSharedSizeBytes = value(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  out->preferredShmemCarveout = value(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
  out->clusterDimMustBeSet = value(CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET);
  out->requiredClusterWidth = value(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH);
  out->requiredClusterHeight = value(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT);
  out->requiredClusterDepth = value(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH);
  out->clusterSchedulingPolicyPreference =
      value(CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE);
  out->nonPortableClusterSizeAllowed = value(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
  return cudaSuccess;
}

static_assert(static_cast<int>(cudaFuncAttributeMaxDynamicSharedMemorySize) ==
                  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES &&
              static_cast<int>(cudaFuncAttributeClusterSchedulingPolicyPreference) ==
                  CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE);

}  // namespace
}  // namespace cudart

using namespace cudart;

// Calls a driver function for the CUfunction of `function`.
#define CUDART_FUNCTION_ENTRY(name, params, driver, args) \
  CUDART_ENTRY(name, params, {                            \
    CUfunction kernel = nullptr;                          \
    CUDART_TRY(find_function(function, &kernel));         \
    return from_driver(CUDART_DRIVER(driver) args);       \
  })

CUDART_ENTRY(cudaFuncGetAttributes, (cudaFuncAttributes * out, const void *function),
             { return function_attributes_of(function, out); })
CUDART_FUNCTION_ENTRY(cudaFuncSetAttribute,
                      (const void *function, cudaFuncAttribute attribute, int value),
                      cuFuncSetAttribute,
                      (kernel, static_cast<CUfunction_attribute>(attribute), value))
CUDART_FUNCTION_ENTRY(cudaFuncSetCacheConfig, (const void *function, cudaFuncCache config),
                      cuFuncSetCacheConfig, (kernel, static_cast<CUfunc_cache>(config)))
CUDART_FUNCTION_ENTRY(cudaFuncSetSharedMemConfig,
                      (const void *function, cudaSharedMemConfig config), cuFuncSetSharedMemConfig,
                      (kernel, static_cast<CUsharedconfig>(config)))
#if CUDART_VERSION >= 12030
CUDART_FUNCTION_ENTRY(cudaFuncGetName, (const char **name, const void *function), cuFuncGetName,
                      (name, kernel))
#endif
#if CUDART_VERSION >= 12040
CUDART_FUNCTION_ENTRY(cudaFuncGetParamInfo,
                      (const void *function, size_t index, size_t *offset, size_t *bytes),
                      cuFuncGetParamInfo, (kernel, index, offset, bytes))
#endif

CUDART_FUNCTION_ENTRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor,
                      (int *blocks, const void *function, int threads, size_t shared_bytes),
                      cuOccupancyMaxActiveBlocksPerMultiprocessor,
                      (blocks, kernel, threads, shared_bytes))
CUDART_FUNCTION_ENTRY(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
                      (int *blocks, const void *function, int threads, size_t shared_bytes,
                       unsigned flags),
                      cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
                      (blocks, kernel, threads, shared_bytes, flags))
CUDART_FUNCTION_ENTRY(cudaOccupancyAvailableDynamicSMemPerBlock,
                      (size_t * bytes, const void *function, int blocks, int threads),
                      cuOccupancyAvailableDynamicSMemPerBlock, (bytes, kernel, blocks, threads))
