// Exports the functions of the runtime that the library does not serve, without their signatures:
// the arguments are not read, and on the platforms of CUDA the caller removes them. They are weak, so
// that the functions of the other sources take their place.
#include "hostcuda/cudart/src/runtime.h"

// The C++ name differs from the symbol, because the headers declare the function.
#define CUDART_UNSERVED(name)                             \
  extern "C" __attribute__((weak, visibility("default"))) \
  cudaError_t cudart_no_##name() __asm__(#name);          \
  extern "C" cudaError_t cudart_no_##name() {             \
    return ::cudart::record(cudaErrorNotSupported);       \
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
