// Exports the functions of NVML that the library does not serve, without their signatures: the
// arguments are not read, and on the platforms of CUDA the caller removes them. They are weak, so
// that the functions of the other sources take their place.
#include "hostcuda/nvml/src/library.h"

// The C++ name differs from the symbol, because nvml_api.h declares some of the functions.
#define X(name)                                                    \
  extern "C" __attribute__((weak, visibility("default")))          \
  nvmlReturn_t nvml_no_##name() __asm__(#name);                    \
  extern "C" nvmlReturn_t nvml_no_##name() {                       \
    return ::nvml::enter([] { return NVML_ERROR_NOT_SUPPORTED; }); \
  }
#include "hostcuda/nvml/src/function_list.h"
#undef X
