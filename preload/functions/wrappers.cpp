// The functions that the library exports under the driver's names.
#include "preload/door.h"
#include "preload/functions/known_device.h"
#include "preload/functions/serve.h"

#define STILLMAP_AND_UNPACK(...) __VA_OPT__(, ) __VA_ARGS__

namespace stillmap::preload {

#define STILLMAP_WRAP(symbol, name, since, stream, wait, parameters, arguments)                   \
  extern "C" __attribute__((visibility("default"))) driver_code symbol parameters {               \
    if constexpr (looks_up(function::symbol)) lookup_caller = __builtin_return_address(0);        \
    const door::passage inside(waits(function::symbol));                                          \
    const driver_code result = serve(numbered<function::symbol>() STILLMAP_AND_UNPACK arguments); \
    known_device::note_call<function::symbol>();                                                  \
    return result;                                                                                \
  }
STILLMAP_DRIVER_FUNCTIONS(STILLMAP_WRAP)
#undef STILLMAP_WRAP

#define STILLMAP_WRAP_NVML(symbol, parameters, arguments)                           \
  extern "C" __attribute__((visibility("default"))) driver_code symbol parameters { \
    return serve(numbered<function::symbol>() STILLMAP_AND_UNPACK arguments);       \
  }
STILLMAP_NVML_FUNCTIONS(STILLMAP_WRAP_NVML)
#undef STILLMAP_WRAP_NVML

}  // namespace stillmap::preload
