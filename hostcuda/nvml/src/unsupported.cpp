// Exports the functions of NVML that the library does not serve, without their signatures: the
// arguments are not read, and on the platforms of CUDA the caller removes them. They are weak, so
// that the functions of the other sources take their place.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "hostcuda/nvml/src/library.h"

namespace nvml {
namespace {

// Says so as the driver does, with HOSTCUDA=log=unsupported.
nvmlReturn_t not_served(const char *name, std::atomic<bool> *told) {
  return enter([=] {
    const char *const settings = std::getenv("HOSTCUDA");
    if (settings != nullptr && std::strstr(settings, "log=unsupported") != nullptr &&
        !told->exchange(true))
      std::fprintf(stderr, "hostcuda: %s is not supported by NVML\n", name);
    return NVML_ERROR_NOT_SUPPORTED;
  });
}

}  // namespace
}  // namespace nvml

// The C++ name differs from the symbol, because nvml_api.h declares some of the functions.
#define X(name)                                           \
  extern "C" __attribute__((weak, visibility("default"))) \
  nvmlReturn_t nvml_no_##name() __asm__(#name);           \
  extern "C" nvmlReturn_t nvml_no_##name() {              \
    static std::atomic<bool> told{false};                 \
    return ::nvml::not_served(#name, &told);              \
  }
#include "hostcuda/nvml/src/function_list.h"
#undef X
