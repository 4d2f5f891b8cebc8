// Libraries that the program loads itself, and the driver's handles of kernels.
#include "hostcuda/cudart/src/registration.h"

using namespace cudart;

namespace cudart {
namespace {

cudaError_t kernel_handle(CUkernel *out, const void *function) {
  if (out == nullptr) return cudaErrorInvalidValue;
  return find_kernel(function, out);
}

}  // namespace
}  // namespace cudart

// Generated code calls the first, programs the second.
CUDART_ENTRY(__cudaGetKernel, (CUkernel * out, const void *function),
             { return kernel_handle(out, function); })
CUDART_ENTRY(cudaGetKernel, (CUkernel * out, const void *function),
             { return kernel_handle(out, function); })
CUDART_ENTRY(cudaGetFuncBySymbol, (cudaFunction_t * out, const void *function), {
  if (out == nullptr) return cudaErrorInvalidValue;
  CUkernel kernel = nullptr;
  CUDART_TRY(find_kernel(function, &kernel));
  CUDART_TRY(CUDART_DRIVER(cuKernelGetFunction)(out, kernel));
  remember_handle(*out);
  return cudaSuccess;
})

#if CUDART_VERSION >= 12080
CUDART_FORWARD(cudaLibraryLoadData,
               (cudaLibrary_t * out, const void *code, cudaJitOption *jit, void **jit_values,
                unsigned jit_count, cudaLibraryOption *options, void **values, unsigned count),
               cuLibraryLoadData,
               (out, code, reinterpret_cast<CUjit_option *>(jit), jit_values, jit_count,
                reinterpret_cast<CUlibraryOption *>(options), values, count))
CUDART_FORWARD(cudaLibraryLoadFromFile,
               (cudaLibrary_t * out, const char *path, cudaJitOption *jit, void **jit_values,
                unsigned jit_count, cudaLibraryOption *options, void **values, unsigned count),
               cuLibraryLoadFromFile,
               (out, path, reinterpret_cast<CUjit_option *>(jit), jit_values, jit_count,
                reinterpret_cast<CUlibraryOption *>(options), values, count))
CUDART_FORWARD(cudaLibraryUnload, (cudaLibrary_t library), cuLibraryUnload, (library))
CUDART_FORWARD(cudaLibraryGetKernelCount, (unsigned *count, cudaLibrary_t library),
               cuLibraryGetKernelCount, (count, library))
CUDART_ENTRY(cudaLibraryGetKernel, (CUkernel * out, cudaLibrary_t library, const char *name), {
  CUDART_TRY(bind());
  CUDART_TRY(CUDART_DRIVER(cuLibraryGetKernel)(out, library, name));
  remember_handle(*out);
  return cudaSuccess;
})
CUDART_ENTRY(cudaLibraryEnumerateKernels, (CUkernel * out, unsigned count, cudaLibrary_t library), {
  CUDART_TRY(bind());
  unsigned have = 0;
  CUDART_TRY(CUDART_DRIVER(cuLibraryGetKernelCount)(&have, library));
  CUDART_TRY(CUDART_DRIVER(cuLibraryEnumerateKernels)(out, count, library));
  for (unsigned i = 0; i < count && i < have; ++i) remember_handle(out[i]);
  return cudaSuccess;
})
CUDART_ENTRY(cudaLibraryGetGlobal,
             (void **out, size_t *bytes, cudaLibrary_t library, const char *name), {
               CUDART_TRY(bind());
               return from_driver(CUDART_DRIVER(cuLibraryGetGlobal)(
                   reinterpret_cast<CUdeviceptr *>(out), bytes, library, name));
             })
CUDART_ENTRY(cudaLibraryGetManaged,
             (void **out, size_t *bytes, cudaLibrary_t library, const char *name), {
               CUDART_TRY(bind());
               return from_driver(CUDART_DRIVER(cuLibraryGetManaged)(
                   reinterpret_cast<CUdeviceptr *>(out), bytes, library, name));
             })
CUDART_ENTRY(cudaKernelSetAttributeForDevice,
             (CUkernel kernel, cudaFuncAttribute attribute, int value, int device), {
               CUDART_TRY(bind());
               return from_driver(CUDART_DRIVER(cuKernelSetAttribute)(
                   static_cast<CUfunction_attribute>(attribute), value, kernel, device));
             })
#endif
