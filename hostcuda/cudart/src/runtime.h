// Entry points of the CUDA runtime, and calls of the driver.
//
// The library is the documented runtime API over the documented driver API. It keeps no memory,
// streams or graphs of its own: their handles are the driver's, as CUDA documents.
// hostcuda/docs/libraries.md#the-cuda-runtime
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <new>

// The headers of CUDA 12 rename these functions; here a name is the exported symbol.
#undef cudaGetDeviceProperties
#undef cudaStreamGetCaptureInfo
#undef cudaSignalExternalSemaphoresAsync
#undef cudaWaitExternalSemaphoresAsync

#define CUDART_MAJOR (CUDART_VERSION / 1000)

// The library also exports functions that the headers mark as deprecated.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace cudart {

// ---- Errors

// The codes of the runtime are those of the driver wherever both have the error.
cudaError_t from_driver(CUresult result);
inline cudaError_t as_error(cudaError_t error) {
  return error;
}
inline cudaError_t as_error(CUresult result) {
  return from_driver(result);
}

// Keeps an error as the last one of this thread, and as the device's if it is sticky. Returns it.
cudaError_t record(cudaError_t error);

// Runs the body of an exported function.
template <class Body>
cudaError_t enter(const Body &body) noexcept {
  try {
    return record(body());
  } catch (const std::bad_alloc &) {
    return record(cudaErrorMemoryAllocation);
  } catch (...) {
    return record(cudaErrorUnknown);
  }
}

// ---- The driver

// The address of a function of libcuda.so.1; nullptr if the driver lacks it or there is no driver.
void *find_driver_function(const char *symbol);

// Whether a libcuda.so.1 is loaded.
bool have_driver();

// What is called in place of a function that the driver lacks.
template <class Function>
struct missing;
template <class... Parameters>
struct missing<CUresult (*)(Parameters...)> {
  static CUresult call(Parameters...) { return CUDA_ERROR_NOT_SUPPORTED; }
};

// ---- Devices and contexts

// Initialises the driver, once in each of its lives: hostcuda_reset() starts a new one.
cudaError_t initialise();

// Makes the primary context of this thread's device current, unless the program has made a context
// current by the driver API.
cudaError_t bind();

// The context in which this thread's calls run, after bind().
CUcontext current_context();
cudaError_t primary_context(int device, CUcontext *out);

// The device of this thread's calls. Creates no context.
int current_device();

// Counts the lives of the driver, and of each device's primary context. What belongs to an earlier
// one is gone.
unsigned driver_life();
unsigned device_life(int device);

// Whether `error` leaves a context that only cudaDeviceReset() can repair.
bool is_sticky(cudaError_t error);
void set_sticky(int device, cudaError_t error);
cudaError_t sticky_error(int device);

inline CUdeviceptr address_of(const void *p) {
  return reinterpret_cast<CUdeviceptr>(p);
}

// Copies linear memory; `wait`: by the synchronous function, on the default stream that `stream` is.
// Requires: bind().
cudaError_t copy_bytes(CUdeviceptr to, CUdeviceptr from, size_t bytes, cudaStream_t stream,
                       bool wait);

// The same structure under the driver's name.
template <class To, class From>
To *same(From *from) {
  static_assert(sizeof(To) == sizeof(From));
  return reinterpret_cast<To *>(from);
}

}  // namespace cudart

// Returns from an entry's body if a call of the driver or of the library failed.
#define CUDART_TRY(...) \
  if (const cudaError_t e_ = ::cudart::as_error(__VA_ARGS__); e_ != cudaSuccess) return e_

// Calls a driver function that the headers of some versions declare under another name, or not.
namespace cudart {
template <class... Parameters>
struct driver_call {
  const char *symbol;
  cudaError_t operator()(Parameters... arguments) const {
    CUDART_TRY(bind());
    auto *const f = reinterpret_cast<CUresult (*)(Parameters...)>(find_driver_function(symbol));
    return f == nullptr ? cudaErrorNotSupported : from_driver(f(arguments...));
  }
};
}  // namespace cudart

// The driver's function `name`, which macros of <cuda.h> may rename.
#define CUDART_DRIVER(name) CUDART_DRIVER_SYMBOL(name)
#define CUDART_DRIVER_SYMBOL(name)                                        \
  ([]() -> decltype(&name) {                                              \
    static void *const found_ = ::cudart::find_driver_function(#name);    \
    return found_ != nullptr ? reinterpret_cast<decltype(&name)>(found_)  \
                             : &::cudart::missing<decltype(&name)>::call; \
  }())

// The same function's variant for the default stream of the thread.
#define CUDART_DRIVER_PTDS(name) CUDART_DRIVER_PTDS_SYMBOL(name)
#define CUDART_DRIVER_PTDS_SYMBOL(name)                                        \
  ([]() -> decltype(&name) {                                                   \
    static void *const found_ = ::cudart::find_driver_function(#name "_ptds"); \
    return found_ != nullptr ? reinterpret_cast<decltype(&name)>(found_)       \
                             : &::cudart::missing<decltype(&name)>::call;      \
  }())

// CUDART_EXPORT(type) name(...) defines an exported function.
#define CUDART_EXPORT(type) extern "C" __attribute__((visibility("default"))) type CUDARTAPI

// CUDART_ENTRY(cudaMalloc, (void **out, size_t bytes), { body; return cudaSuccess; })
#define CUDART_ENTRY(name, params, ...)                           \
  CUDART_EXPORT(cudaError_t) name params {                        \
    return ::cudart::enter([&]() -> cudaError_t { __VA_ARGS__ }); \
  }

// A function that takes a stream, and its variant for programs with a default stream per thread.
#define CUDART_STREAM_ENTRY(name, stream, params, ...)   \
  CUDART_ENTRY(name, params, __VA_ARGS__)                \
  CUDART_ENTRY(name##_ptsz, params, {                    \
    if (stream == nullptr) stream = cudaStreamPerThread; \
    __VA_ARGS__                                          \
  })

// A synchronous function, and its variant. The body finds the default stream in `stream_`.
#define CUDART_SYNC_ENTRY(name, params, ...)          \
  CUDART_ENTRY(name, params, {                        \
    const cudaStream_t stream_ = nullptr;             \
    __VA_ARGS__                                       \
  })                                                  \
  CUDART_ENTRY(name##_ptds, params, {                 \
    const cudaStream_t stream_ = cudaStreamPerThread; \
    __VA_ARGS__                                       \
  })

// Functions that pass their arguments on to the driver: without a context, and in a current one.
#define CUDART_DEVICE_FORWARD(name, params, driver, args)     \
  CUDART_ENTRY(name, params, {                                \
    CUDART_TRY(::cudart::initialise());                       \
    return ::cudart::from_driver(CUDART_DRIVER(driver) args); \
  })
#define CUDART_FORWARD(name, params, driver, args)            \
  CUDART_ENTRY(name, params, {                                \
    CUDART_TRY(::cudart::bind());                             \
    return ::cudart::from_driver(CUDART_DRIVER(driver) args); \
  })
#define CUDART_STREAM_FORWARD(name, stream, params, driver, args) \
  CUDART_STREAM_ENTRY(name, stream, params, {                     \
    CUDART_TRY(::cudart::bind());                                 \
    return ::cudart::from_driver(CUDART_DRIVER(driver) args);     \
  })
