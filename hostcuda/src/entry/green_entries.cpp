// The functions of green contexts.
#include "hostcuda/src/context.h"
#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/device.h"
#include "hostcuda/src/entry/device_resource.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution.h"
#include "hostcuda/src/green_context.h"

#if CUDA_VERSION >= 12050
namespace hostcuda {
namespace {

CUresult create_green(CUgreenCtx *out, CUdevResourceDesc desc, CUdevice device, unsigned flags) {
  if (out == nullptr || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  CUdevice described = 0;
  unsigned multiprocessors = 0;
  if (!find_resource_descriptor(desc, &described, &multiprocessors) || described != device)
    return CUDA_ERROR_INVALID_VALUE;
  context *const primary = retain_primary(device);
  *out = reinterpret_cast<CUgreenCtx>(add_green_context(primary, primary->lives, multiprocessors));
  return CUDA_SUCCESS;
}

CUresult destroy_green(CUgreenCtx handle) {
  green_context *const g = find_green_context(handle, false);
  if (g == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const bool was_alive = is_alive(*g);
  if (!g->alive.exchange(false) || !was_alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  end_streams_of(g);
  return release_primary(g->primary->device);
}

// A live green context, or nullptr.
green_context *live_green(CUgreenCtx handle) {
  green_context *const g = find_green_context(handle, false);
  return g != nullptr && is_alive(*g) ? g : nullptr;
}

CUresult resource_of_context(CUcontext handle, CUdevResource *out, CUdevResourceType type) {
  const context *const ctx = find_context(handle);
  if (ctx == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return get_resource(ctx->device, find_green_context(handle, true), type, out);
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuGreenCtxCreate, 12040, plain, 0,
               (CUgreenCtx * out, CUdevResourceDesc desc, CUdevice device, unsigned flags),
               { return create_green(out, desc, device, flags); })
HOSTCUDA_ENTRY(cuGreenCtxDestroy, 12040, ignores_sticky, 0, (CUgreenCtx handle),
               { return destroy_green(handle); })
HOSTCUDA_ENTRY(cuCtxFromGreenCtx, 12040, plain, 0, (CUcontext * out, CUgreenCtx handle), {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  green_context *const g = live_green(handle);
  if (g == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *out = converted_handle(g);
  return CUDA_SUCCESS;
})
HOSTCUDA_ENTRY(cuCtxGetDevResource, 12040, plain, 0,
               (CUcontext handle, CUdevResource *out, CUdevResourceType type),
               { return resource_of_context(handle, out, type); })
HOSTCUDA_ENTRY(cuGreenCtxGetDevResource, 12040, plain, 0,
               (CUgreenCtx handle, CUdevResource *out, CUdevResourceType type), {
                 const green_context *const g = live_green(handle);
                 if (g == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
                 return get_resource(g->primary->device, g, type, out);
               })
HOSTCUDA_ENTRY(cuGreenCtxStreamCreate, 12050, plain, 0,
               (CUstream * out, CUgreenCtx handle, unsigned flags, int priority), {
                 green_context *const g = live_green(handle);
                 if (g == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
                 if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
                 return create_stream({g->primary, g}, out, flags, priority);
               })
HOSTCUDA_ENTRY(cuStreamGetGreenCtx, 12040, plain, 0, (CUstream stream, CUgreenCtx *out), {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  current_entry of;
  if (const CUresult r = context_of(stream, &of); r != CUDA_SUCCESS) return r;
  *out = reinterpret_cast<CUgreenCtx>(of.green);
  return CUDA_SUCCESS;
})
#else
using namespace hostcuda;
HOSTCUDA_NOT_PROVIDED(cuGreenCtxCreate, 12040)
HOSTCUDA_NOT_PROVIDED(cuGreenCtxDestroy, 12040)
HOSTCUDA_NOT_PROVIDED(cuCtxFromGreenCtx, 12040)
HOSTCUDA_NOT_PROVIDED(cuCtxGetDevResource, 12040)
HOSTCUDA_NOT_PROVIDED(cuGreenCtxGetDevResource, 12040)
HOSTCUDA_NOT_PROVIDED(cuGreenCtxStreamCreate, 12050)
HOSTCUDA_NOT_PROVIDED(cuStreamGetGreenCtx, 12040)
#endif
