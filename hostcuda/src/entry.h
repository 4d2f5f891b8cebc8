// The doorway of every exported driver function: what happens before its body runs.
//
// In this order: fork check (a child after cuInit gets NOT_INITIALIZED), cuInit check, availability
// in the simulated driver version, counting, cost model, injected fault, sticky error of the current
// context. A body is reached only when all of that let it through.
// docs/hostcuda.md#life-of-a-call
#pragma once

#include <cuda.h>

#include <utility>

namespace hostcuda {

enum entry_flags : unsigned {
  plain = 0,
  before_init = 1,     // legal before cuInit
  never_fails = 2,     // not subject to fault injection
  ignores_sticky = 4,  // works in a broken context (queries of the driver, teardown)
  needs_context = 8,   // INVALID_CONTEXT (201) unless the calling thread has a current context
};

// One per exported function, made by HOSTCUDA_ENTRY: its name without suffix, the driver version
// that introduced it, its counter, its fault rule, its cost.
struct entry_point;
entry_point *register_entry(const char *name, int since_version);

// Returns CUDA_SUCCESS when the body may run. `bytes` feeds the cost model (0 where size is moot).
CUresult enter(entry_point *entry, unsigned flags, size_t bytes);

}  // namespace hostcuda

// HOSTCUDA_ENTRY(cuMemMap, 10020, hostcuda::needs_context, size,
//                (CUdeviceptr ptr, size_t size, ...), { body; return CUDA_SUCCESS; })
#define HOSTCUDA_ENTRY(name, since, flags, bytes, params, ...)                         \
  extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI name params {     \
    static ::hostcuda::entry_point *const entry_ = ::hostcuda::register_entry(#name, since); \
    if (CUresult r_ = ::hostcuda::enter(entry_, (flags), (bytes)); r_ != CUDA_SUCCESS) \
      return r_;                                                                       \
    __VA_ARGS__                                                                        \
  }
