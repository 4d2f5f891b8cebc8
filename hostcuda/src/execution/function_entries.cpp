// Functions: attributes, names, parameters and loading state.
#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution/module.h"
#include "hostcuda/src/machine.h"

namespace hostcuda {

// The values that the program cannot set are common for kernels of compute capability 9.0.
CUresult get_attribute(int *out, int what, const function_attributes &from) {
  switch (what) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *out = 1024;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: {
      const auto &machine = current_settings().machine;
      *out = machine.compute_major * 10 + machine.compute_minor;
      return CUDA_SUCCESS;
    }
    default:
      break;
  }
  if (what < 0 || what >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(the_modules().mu);
  *out = from.values.at(static_cast<std::size_t>(what));
  return CUDA_SUCCESS;
}

CUresult set_attribute(int what, int value, function_attributes *to) {
  if (what < CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || what >= CU_FUNC_ATTRIBUTE_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  if (what == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && (value < 0 || value > 227 * 1024))
    return CUDA_ERROR_INVALID_VALUE;
  // Those that control caches and clusters have no effect, but are returned.
  std::lock_guard lock(the_modules().mu);
  to->values.at(static_cast<std::size_t>(what)) = value;
  return CUDA_SUCCESS;
}

CUresult param_info(const std::vector<kernel_param> &params, std::size_t index, std::size_t *offset,
                    std::size_t *bytes) {
  if (offset == nullptr || index >= params.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = params[index].offset;
  if (bytes != nullptr) *bytes = params[index].bytes;
  return CUDA_SUCCESS;
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuFuncGetAttribute, 2020, plain, 0,
               (int *out, CUfunction_attribute what, CUfunction handle), {
                 if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 const auto f = find_function(handle);
                 return f ? get_attribute(out, what, *f->attributes) : CUDA_ERROR_INVALID_HANDLE;
               })

HOSTCUDA_ENTRY(cuFuncSetAttribute, 9000, plain, 0,
               (CUfunction handle, CUfunction_attribute what, int value), {
                 const auto f = find_function(handle);
                 return f ? set_attribute(what, value, f->attributes.get())
                          : CUDA_ERROR_INVALID_HANDLE;
               })

// Caches and banks are not simulated.
HOSTCUDA_ENTRY(cuFuncSetCacheConfig, 3000, plain, 0, (CUfunction handle, CUfunc_cache),
               { return find_function(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; })
HOSTCUDA_ENTRY(cuFuncSetSharedMemConfig, 4020, plain, 0, (CUfunction handle, CUsharedconfig),
               { return find_function(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; })

// Deprecated, for cuLaunch, which is not provided. PyCUDA sets the shape before cuLaunchKernel too.
HOSTCUDA_ENTRY(cuFuncSetBlockShape, 2000, needs_context, 0,
               (CUfunction handle, int x, int y, int z), {
                 if (!find_function(handle)) return CUDA_ERROR_INVALID_HANDLE;
                 const bool legal = x > 0 && x <= 1024 && y > 0 && y <= 1024 && z > 0 && z <= 64 &&
                                    x * y * z <= 1024;
                 return legal ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
               })

HOSTCUDA_ENTRY(cuFuncGetModule, 11000, plain, 0, (CUmodule * out, CUfunction handle), {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto f = find_function(handle);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  *out = f->module;
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuFuncGetName, 12030, plain, 0, (const char **out, CUfunction handle), {
  if (out == nullptr || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto f = find_function(handle);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  *out = f->name.c_str();
  return CUDA_SUCCESS;
})

#if CUDA_VERSION >= 12040
HOSTCUDA_ENTRY(cuFuncGetParamInfo, 12040, plain, 0,
               (CUfunction handle, size_t index, size_t *offset, size_t *bytes), {
                 const auto f = find_function(handle);
                 return f ? param_info(f->params, index, offset, bytes) : CUDA_ERROR_INVALID_HANDLE;
               })

HOSTCUDA_ENTRY(cuFuncIsLoaded, 12040, plain, 0, (CUfunctionLoadingState * state, CUfunction handle),
               {
                 if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 if (!find_function(handle)) return CUDA_ERROR_INVALID_HANDLE;
                 *state = CU_FUNCTION_LOADING_STATE_LOADED;
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuFuncLoad, 12040, plain, 0, (CUfunction handle),
               { return find_function(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; })
#else
HOSTCUDA_NOT_PROVIDED(cuFuncGetParamInfo, 12040)
HOSTCUDA_NOT_PROVIDED(cuFuncIsLoaded, 12040)
HOSTCUDA_NOT_PROVIDED(cuFuncLoad, 12040)
#endif
