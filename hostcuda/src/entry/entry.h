// Entry point of exported driver functions: checks that run before the body of each function.
//
// The checks, in order: fork (a child of an initialised process gets NOT_INITIALIZED), cuInit,
// availability in the simulated driver version, call count, cost model, injected fault, sticky
// error of the current context, features that the machine lacks. The body runs only if every check
// succeeds.
// hostcuda/docs/calls.md#life-of-a-call
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "hostcuda/src/cuda_names.h"

// hostcuda also exports functions that <cuda.h> marks as deprecated.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace hostcuda {

enum entry_flags : unsigned {
  plain = 0,
  before_init = 1,     // legal before cuInit
  never_fails = 2,     // not subject to fault injection
  ignores_sticky = 4,  // works in a broken context (queries of the driver, teardown)
  needs_context = 8,   // INVALID_CONTEXT (201) unless the calling thread has a current context
  needs_vmm = 16,      // NOT_SUPPORTED (801) unless the machine has virtual memory management
  needs_pools = 32,    // NOT_SUPPORTED unless the machine has memory pools
};

// Record of one exported function, which HOSTCUDA_ENTRY creates when the library is loaded: symbol,
// driver version that introduced it, and address. Functions that differ only in a suffix (_v2,
// _ptsz) share a counter, a fault rule and a cost.
struct entry_point;
entry_point *register_entry(const char *symbol, int since_version, void *address);

// Returns CUDA_SUCCESS if the body may run. `bytes` is the size for the cost model; 0 if the
// function has none.
CUresult enter(entry_point *entry, unsigned flags, std::size_t bytes);

// Body of an export without a signature: NOT_SUPPORTED in every state, before cuInit too, unless
// the process is a forked child or a fault is injected.
CUresult call_not_provided(entry_point *entry);

// Returns `symbol` without its suffixes _v2, _v3, _v4, _ptsz, _ptds.
std::string base_name(const char *symbol);

// Whether cuInit has been called in this process. False in a forked child.
bool driver_initialised();

// Returns the export for `name` at `version`. Otherwise returns nullptr and sets *status (a
// CUdriverProcAddressQueryResult).
void *find_entry(const char *name, int version, bool per_thread_stream, int *status);

// Restores the state before cuInit and clears counts, costs and fault rules.
void reset_entries();

}  // namespace hostcuda

// For the macros below: the name as written must be the name after macro expansion.
#define HOSTCUDA_CHECK_NAME(as_written, name)          \
  static_assert(std::string_view(as_written) == #name, \
                "a macro of <cuda.h> renames this function: add it to cuda_names.h");

// HOSTCUDA_ENTRY(cuMemMap, 10020, hostcuda::plain, size, (CUdeviceptr ptr, size_t size, ...),
//                { body; return CUDA_SUCCESS; })
// The first argument is the exported symbol, so cuMemAlloc is written cuMemAlloc_v2.
#define HOSTCUDA_ENTRY(name, since, flags, bytes, params, ...)                     \
  HOSTCUDA_CHECK_NAME(#name, name)                                                 \
  extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI name params;  \
  static ::hostcuda::entry_point *const hostcuda_entry_##name =                    \
      ::hostcuda::register_entry(#name, since, reinterpret_cast<void *>(&name));   \
  extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI name params { \
    if (CUresult r_ = ::hostcuda::enter(hostcuda_entry_##name, (flags), (bytes));  \
        r_ != CUDA_SUCCESS)                                                        \
      return r_;                                                                   \
    __VA_ARGS__                                                                    \
  }

// Defines a function and its _v2, which have the same signature. `args` repeats the parameter names.
#define HOSTCUDA_ENTRY_AND_V2(name, since, since_v2, flags, bytes, params, args, ...) \
  HOSTCUDA_CHECK_NAME(#name, name)                                                    \
  static CUresult name##_body params{__VA_ARGS__} HOSTCUDA_ENTRY(                     \
      name, since, flags, bytes, params, { return name##_body args; })                \
      HOSTCUDA_ENTRY(name##_v2, since_v2, flags, bytes, params, { return name##_body args; })

// Defines a function that always fails.
#define HOSTCUDA_UNSUPPORTED(name, since, flags, params) \
  HOSTCUDA_CHECK_NAME(#name, name)                       \
  HOSTCUDA_ENTRY(name, since, flags, 0, params, { return CUDA_ERROR_NOT_SUPPORTED; })

// Exports a function that hostcuda does not provide, without its signature: the arguments are not
// read, and on the platforms of the driver the caller removes them. The C++ name differs from the
// symbol, because <cuda.h> declares some of these functions.
#define HOSTCUDA_NOT_PROVIDED(name, since)                                                 \
  extern "C" __attribute__((visibility("default")))                                        \
  CUresult hostcuda_not_provided_##name() __asm__(#name);                                  \
  static ::hostcuda::entry_point *const hostcuda_not_provided_entry_##name =               \
      ::hostcuda::register_entry(#name, since,                                             \
                                 reinterpret_cast<void *>(&hostcuda_not_provided_##name)); \
  extern "C" CUresult hostcuda_not_provided_##name() {                                     \
    return ::hostcuda::call_not_provided(hostcuda_not_provided_entry_##name);              \
  }

// Defines a function that takes a stream, and its per-thread variant (_ptsz). `stream` names the
// stream parameter, `args` repeats the parameter names. In the per-thread variant, a null stream
// becomes CU_STREAM_PER_THREAD.
#define HOSTCUDA_STREAM_ENTRY(name, since, flags, bytes, stream, params, args, ...)        \
  HOSTCUDA_CHECK_NAME(#name, name)                                                         \
  static CUresult name##_body params{__VA_ARGS__} HOSTCUDA_ENTRY(                          \
      name, since, flags, bytes, params, { return name##_body args; })                     \
      HOSTCUDA_ENTRY(name##_ptsz, (since) < 7000 ? 7000 : (since), flags, bytes, params, { \
        if (stream == nullptr) stream = CU_STREAM_PER_THREAD;                              \
        return name##_body args;                                                           \
      })

// Defines a synchronous function and its per-thread variant (_ptds). The body finds its default
// stream in `stream_`.
#define HOSTCUDA_SYNC_ENTRY(name, since, flags, bytes, params, args, ...)                 \
  HOSTCUDA_CHECK_NAME(#name, name)                                                        \
  static CUresult name##_body(CUstream stream_, HOSTCUDA_UNPACK params){                  \
      __VA_ARGS__} HOSTCUDA_ENTRY(name, since, flags, bytes, params,                      \
                                  { return name##_body(nullptr, HOSTCUDA_UNPACK args); }) \
      HOSTCUDA_ENTRY(name##_ptds, (since) < 7000 ? 7000 : (since), flags, bytes, params,  \
                     { return name##_body(CU_STREAM_PER_THREAD, HOSTCUDA_UNPACK args); })
#define HOSTCUDA_UNPACK(...) __VA_ARGS__
