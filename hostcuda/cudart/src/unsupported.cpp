// Exports the functions of the runtime that the library does not serve, without their signatures:
// the arguments are not read, and on the platforms of CUDA the caller removes them. They are weak, so
// that the functions of the other sources take their place.
#include "hostcuda/cudart/src/unsupported.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace cudart {

// As the driver does with HOSTCUDA=log=unsupported, which is where its settings are documented.
cudaError_t not_served(const char *name, std::atomic<bool> *told) {
  const char *const settings = std::getenv("HOSTCUDA");
  if (settings != nullptr && std::strstr(settings, "log=unsupported") != nullptr &&
      !told->exchange(true))
    std::fprintf(stderr, "hostcuda: %s is not supported by the runtime\n", name);
  return record(cudaErrorNotSupported);
}

}  // namespace cudart

// The C++ name differs from the symbol, because the headers declare the function.
#define CUDART_UNSERVED(name)                             \
  extern "C" __attribute__((weak, visibility("default"))) \
  cudaError_t cudart_no_##name() __asm__(#name);          \
  extern "C" cudaError_t cudart_no_##name() {             \
    static std::atomic<bool> told{false};                 \
    return ::cudart::not_served(#name, &told);            \
  }

#define X(name) CUDART_UNSERVED(name)
#if CUDART_MAJOR < 13
#define X12(name) CUDART_UNSERVED(name)
#define X13(name)
#else
#define X12(name)
#define X13(name) CUDART_UNSERVED(name)
#endif
#include "hostcuda/cudart/src/function_list.h"
#undef X
#undef X12
#undef X13
