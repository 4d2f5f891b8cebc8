// The doorway of every exported driver function: what happens before its body runs.
//
// In this order: fork check (a child after cuInit gets NOT_INITIALIZED), cuInit check, availability
// in the simulated driver version, counting, cost model, injected fault, sticky error of the
// current context. A body is reached only when all of that let it through.
// docs/hostcuda.md#life-of-a-call
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "hostcuda/src/cuda_names.h"

// A driver must export what the header calls deprecated, too.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace hostcuda {

enum entry_flags : unsigned {
  plain = 0,
  before_init = 1,     // legal before cuInit
  never_fails = 2,     // not subject to fault injection
  ignores_sticky = 4,  // works in a broken context (queries of the driver, teardown)
  needs_context = 8,   // INVALID_CONTEXT (201) unless the calling thread has a current context
};

// One per exported function, made by HOSTCUDA_ENTRY when the library is loaded: its symbol, the
// driver version that introduced it, its address. Functions that differ only in a suffix (_v2,
// _ptsz) share a counter, a fault rule and a cost.
struct entry_point;
entry_point *register_entry(const char *symbol, int since_version, void *address);

// Returns CUDA_SUCCESS when the body may run. `bytes` feeds the cost model (0 where size is moot).
CUresult enter(entry_point *entry, unsigned flags, std::size_t bytes);

// `symbol` without _v2, _v3, _v4, _ptsz, _ptds.
std::string base_name(const char *symbol);

// From cuInit on. False in a forked child.
bool driver_initialised();

// The export for `name` at `version`; nullptr and *status (a CUdriverProcAddressQueryResult) else.
void *find_entry(const char *name, int version, bool per_thread_stream, int *status);

// Back to the state before cuInit: counts, costs and faults forgotten.
void reset_entries();

}  // namespace hostcuda

// HOSTCUDA_ENTRY(cuMemMap, 10020, hostcuda::plain, size, (CUdeviceptr ptr, size_t size, ...),
//                { body; return CUDA_SUCCESS; })
// The first argument is the exported symbol, so cuMemAlloc is written cuMemAlloc_v2.
#define HOSTCUDA_ENTRY(name, since, flags, bytes, params, ...)                     \
  extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI name params;  \
  static ::hostcuda::entry_point *const hostcuda_entry_##name =                    \
      ::hostcuda::register_entry(#name, since, reinterpret_cast<void *>(&name));   \
  extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI name params { \
    if (CUresult r_ = ::hostcuda::enter(hostcuda_entry_##name, (flags), (bytes));  \
        r_ != CUDA_SUCCESS)                                                        \
      return r_;                                                                   \
    __VA_ARGS__                                                                    \
  }

// A function that takes a stream, with its per-thread twin: `stream` names the parameter, `args`
// repeats the parameters. The body is written once and sees which default stream was meant.
#define HOSTCUDA_STREAM_ENTRY(name, since, flags, bytes, stream, params, args, ...)        \
  static CUresult name##_body params{__VA_ARGS__} HOSTCUDA_ENTRY(                          \
      name, since, flags, bytes, params, { return name##_body args; })                     \
      HOSTCUDA_ENTRY(name##_ptsz, (since) < 7000 ? 7000 : (since), flags, bytes, params, { \
        if (stream == nullptr) stream = CU_STREAM_PER_THREAD;                              \
        return name##_body args;                                                           \
      })

// A synchronous function with a per-thread twin. The body finds its default stream in `stream_`.
#define HOSTCUDA_SYNC_ENTRY(name, since, flags, bytes, params, args, ...)                 \
  static CUresult name##_body(CUstream stream_, HOSTCUDA_UNPACK params){                  \
      __VA_ARGS__} HOSTCUDA_ENTRY(name, since, flags, bytes, params,                      \
                                  { return name##_body(nullptr, HOSTCUDA_UNPACK args); }) \
      HOSTCUDA_ENTRY(name##_ptds, (since) < 7000 ? 7000 : (since), flags, bytes, params,  \
                     { return name##_body(CU_STREAM_PER_THREAD, HOSTCUDA_UNPACK args); })
#define HOSTCUDA_UNPACK(...) __VA_ARGS__
