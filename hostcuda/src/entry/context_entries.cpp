// Context functions: primary and created contexts, the current context of a thread, limits, peer
// access.
#include <memory>
#include <mutex>

#include "hostcuda/src/context.h"
#include "hostcuda/src/device.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution.h"
#include "hostcuda/src/memory.h"
#include "hostcuda/src/shared_machine.h"

namespace hostcuda {
namespace {

void bring_to_life(context *ctx) {
  ctx->sticky = CUDA_SUCCESS;
  attach_execution(ctx);
  ++ctx->lives;
  ctx->alive = true;
  count_machine_context(ctx->device, 1);
}

// Drains the streams, then frees the memory allocated in the context.
void destroy(context *ctx) {
  if (!ctx->alive.exchange(false)) return;
  ctx->exec.reset();
  release_context_memory(ctx);
  if (context_state *s = state_of(ctx)) s->peers.clear();
  count_machine_context(ctx->device, -1);
}

bool valid_flags(unsigned flags) {
  const unsigned sched = flags & 0x07;
  return (flags & ~0xFFU) == 0 && (sched == 0 || sched == 1 || sched == 2 || sched == 4);
}

// The primary context of `device`, which may be dead, or nullptr if there never was one.
context *primary_of(CUdevice device) {
  std::lock_guard<std::mutex> lock(all_contexts().mutex);
  const auto it = all_contexts().primary.find(device);
  return it == all_contexts().primary.end() ? nullptr : it->second;
}

CUresult primary_release(CUdevice device, bool all) {
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  context *const ctx = primary_of(device);
  context_state *const s = state_of(ctx);
  if (s == nullptr) return all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  // Until it is destroyed: a retain meanwhile would return a context that is about to lose its
  // memory.
  const std::lock_guard<std::mutex> life(s->life);
  if (!ctx->alive) return all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  s->retained = all ? 0 : s->retained - 1;
  if (s->retained == 0) destroy(ctx);
  return CUDA_SUCCESS;
}

CUresult create(CUcontext *out, unsigned flags, CUdevice device, unsigned api_version) {
  if (out == nullptr || !valid_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  context *ctx = make_context(device, flags, false);
  ctx->api_version = api_version;
  bring_to_life(ctx);
  context_stack().push_back({ctx});
  *out = handle_of(ctx);
  return CUDA_SUCCESS;
}

// Adds a use of a context, or takes one away. Returns false if it was the last.
bool count_use(context *ctx, bool attach) {
  context_state *const s = state_of(ctx);
  std::lock_guard<std::mutex> lock(all_contexts().mutex);
  if (!attach && s->attached == 0) return false;
  s->attached += attach ? 1U : ~0U;
  return true;
}

// The context of a handle argument of the 13.0 signatures; NULL means the current context.
context *named_or_current(CUcontext handle) {
  return handle != nullptr ? find_context(handle) : current_context();
}

CUresult get_device(CUdevice *out, context *ctx) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (ctx == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *out = ctx->device;
  return CUDA_SUCCESS;
}

}  // namespace

context *retain_primary(CUdevice device) {
  context *ctx = primary_of(device);
  if (ctx == nullptr) {
    context *fresh = make_context(device, 0, true);
    std::lock_guard<std::mutex> lock(all_contexts().mutex);
    ctx = all_contexts().primary.try_emplace(device, fresh).first->second;
    ctx->flags = all_contexts().primary_flags[device];
  }
  context_state *state = state_of(ctx);
  std::lock_guard<std::mutex> life(state->life);
  if (!ctx->alive) bring_to_life(ctx);
  ++state->retained;
  return ctx;
}

CUresult release_primary(CUdevice device) {
  return primary_release(device, false);
}

void reset_contexts() {
  for (context *ctx : live_contexts()) destroy(ctx);
  forget_primary_contexts();
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuDevicePrimaryCtxRetain, 7000, plain, 0, (CUcontext * out, CUdevice device), {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *out = handle_of(retain_primary(device));
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY_AND_V2(cuDevicePrimaryCtxRelease, 7000, 11000, ignores_sticky, 0, (CUdevice device),
                      (device), { return primary_release(device, false); })
HOSTCUDA_ENTRY_AND_V2(cuDevicePrimaryCtxReset, 7000, 11000, ignores_sticky, 0, (CUdevice device),
                      (device), { return primary_release(device, true); })
HOSTCUDA_ENTRY_AND_V2(cuDevicePrimaryCtxSetFlags, 7000, 11000, plain, 0,
                      (CUdevice device, unsigned flags), (device, flags), {
                        if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
                        if (!valid_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
                        context_table &contexts = all_contexts();
                        std::lock_guard<std::mutex> lock(contexts.mutex);
                        contexts.primary_flags[device] = flags;
                        if (const auto it = contexts.primary.find(device);
                            it != contexts.primary.end())
                          it->second->flags = flags;
                        return CUDA_SUCCESS;
                      })

HOSTCUDA_ENTRY(cuDevicePrimaryCtxGetState, 7000, ignores_sticky, 0,
               (CUdevice device, unsigned *flags, int *active), {
                 if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
                 std::lock_guard<std::mutex> lock(all_contexts().mutex);
                 const auto it = all_contexts().primary.find(device);
                 *flags = all_contexts().primary_flags[device];
                 *active = it != all_contexts().primary.end() && it->second->alive ? 1 : 0;
                 return CUDA_SUCCESS;
               })

HOSTCUDA_ENTRY(cuCtxCreate, 2000, plain, 0, (CUcontext * out, unsigned flags, CUdevice device),
               { return create(out, flags, device, 3010); })
HOSTCUDA_ENTRY(cuCtxCreate_v2, 3020, plain, 0, (CUcontext * out, unsigned flags, CUdevice device),
               { return create(out, flags, device, 3020); })
HOSTCUDA_ENTRY(cuCtxCreate_v3, 11040, plain, 0,
               (CUcontext * out, CUexecAffinityParam *params, int count, unsigned flags,
                CUdevice device),
               {
                 if (count != 0 || params != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
                 return create(out, flags, device, 3020);
               })
#if CUDA_VERSION >= 12050
HOSTCUDA_ENTRY(cuCtxCreate_v4, 12050, plain, 0,
               (CUcontext * out, CUctxCreateParams *params, unsigned flags, CUdevice device), {
                 if (params != nullptr &&
                     (params->numExecAffinityParams != 0 || params->cigParams != nullptr))
                   return CUDA_ERROR_NOT_SUPPORTED;
                 return create(out, flags, device, 3020);
               })
#else
HOSTCUDA_NOT_PROVIDED(cuCtxCreate_v4, 12050)
#endif
HOSTCUDA_ENTRY_AND_V2(cuCtxDestroy, 2000, 4000, ignores_sticky, 0, (CUcontext handle), (handle), {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  context *ctx = find_context(handle);
  if (ctx == nullptr || ctx->primary) return CUDA_ERROR_INVALID_CONTEXT;
  destroy(ctx);
  auto &contexts = context_stack();
  if (!contexts.empty() && contexts.back().ctx == ctx) contexts.pop_back();
  return CUDA_SUCCESS;
})
HOSTCUDA_ENTRY_AND_V2(cuCtxPushCurrent, 2000, 4000, ignores_sticky, 0, (CUcontext handle), (handle),
                      {
                        if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
                        const current_entry entry = find_entry(handle);
                        if (entry.ctx == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
                        context_stack().push_back(entry);
                        return CUDA_SUCCESS;
                      })
HOSTCUDA_ENTRY_AND_V2(cuCtxPopCurrent, 2000, 4000, ignores_sticky, 0, (CUcontext * out), (out), {
  auto &contexts = context_stack();
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (out != nullptr) *out = handle_of(contexts.back());
  contexts.pop_back();
  return CUDA_SUCCESS;
})

// CUDA deprecates both, but PyCUDA detaches its contexts.
HOSTCUDA_ENTRY(cuCtxAttach, 2000, needs_context, 0, (CUcontext * out, unsigned flags), {
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  count_use(current_context(), true);
  *out = handle_of(current_entry_of_thread());
  return CUDA_SUCCESS;
})
HOSTCUDA_ENTRY(cuCtxDetach, 2000, ignores_sticky, 0, (CUcontext handle), {
  context *ctx = find_context(handle);
  if (ctx == nullptr || ctx->primary || ctx != current_context()) return CUDA_ERROR_INVALID_CONTEXT;
  if (count_use(ctx, false)) return CUDA_SUCCESS;
  destroy(ctx);
  context_stack().pop_back();
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuCtxSetCurrent, 4000, ignores_sticky, 0, (CUcontext handle), {
  const current_entry entry = find_entry(handle);
  if (handle != nullptr && entry.ctx == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  auto &contexts = context_stack();
  if (!contexts.empty()) contexts.pop_back();
  if (entry.ctx != nullptr) contexts.push_back(entry);
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuCtxGetCurrent, 4000, ignores_sticky, 0, (CUcontext * out), {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = handle_of(current_entry_of_thread());
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuCtxGetDevice, 2000, needs_context | ignores_sticky, 0, (CUdevice * out),
               { return get_device(out, current_context()); })
HOSTCUDA_ENTRY(cuCtxGetDevice_v2, 13000, ignores_sticky, 0, (CUdevice * out, CUcontext handle),
               { return get_device(out, named_or_current(handle)); })

HOSTCUDA_ENTRY(cuCtxSynchronize, 2000, needs_context, 0, (void),
               { return synchronize(current_context()); })
HOSTCUDA_ENTRY(cuCtxSynchronize_v2, 13000, plain, 0, (CUcontext handle), {
  context *ctx = named_or_current(handle);
  return ctx == nullptr ? CUDA_ERROR_INVALID_CONTEXT : synchronize(ctx);
})

HOSTCUDA_ENTRY(cuCtxGetFlags, 7000, needs_context, 0, (unsigned *flags), {
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = current_context()->flags;
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuCtxSetFlags, 12010, needs_context, 0, (unsigned flags), {
  if (!valid_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  current_context()->flags = flags;
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuCtxGetId, 12000, plain, 0, (CUcontext handle, unsigned long long *id), {
  context *ctx = named_or_current(handle);
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (ctx == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *id = ctx->id;
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuCtxGetApiVersion, 3020, plain, 0, (CUcontext handle, unsigned *version), {
  context *ctx = named_or_current(handle);
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (ctx == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *version = ctx->api_version != 0 ? ctx->api_version : 3020;
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuCtxGetLimit, 3010, needs_context, 0, (size_t * value, CUlimit limit), {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto index = static_cast<unsigned>(limit);
  if (index >= kLimits) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  *value = state_of(current_context())->limits[index];
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuCtxSetLimit, 3010, needs_context, 0, (CUlimit limit, size_t value), {
  const auto index = static_cast<unsigned>(limit);
  if (index >= kLimits) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  state_of(current_context())->limits[index] = value;
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuCtxGetStreamPriorityRange, 5050, needs_context, 0, (int *least, int *greatest), {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuCtxGetCacheConfig, 3020, needs_context, 0, (CUfunc_cache * config), {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *config = CU_FUNC_CACHE_PREFER_NONE;
  return CUDA_SUCCESS;
})
HOSTCUDA_ENTRY(cuCtxSetCacheConfig, 3020, needs_context, 0, (CUfunc_cache),
               { return CUDA_SUCCESS; })

HOSTCUDA_ENTRY(cuCtxGetSharedMemConfig, 4020, needs_context, 0, (CUsharedconfig * config), {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
  return CUDA_SUCCESS;
})
HOSTCUDA_ENTRY(cuCtxSetSharedMemConfig, 4020, needs_context, 0, (CUsharedconfig),
               { return CUDA_SUCCESS; })

HOSTCUDA_ENTRY(cuCtxEnablePeerAccess, 4000, needs_context, 0, (CUcontext handle, unsigned flags), {
  context *peer = find_context(handle);
  context *self = current_context();
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (peer == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (peer->device == self->device || !can_access_peer(self->device, peer->device))
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  context_state *s = state_of(self);
  std::lock_guard<std::mutex> lock(all_contexts().mutex);
  return s->peers.insert(peer).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
})

HOSTCUDA_ENTRY(cuCtxDisablePeerAccess, 4000, needs_context, 0, (CUcontext handle), {
  context *peer = find_context(handle);
  if (peer == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  context_state *s = state_of(current_context());
  std::lock_guard<std::mutex> lock(all_contexts().mutex);
  return s->peers.erase(peer) != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
})
