// Some of the driver's functions, with a version in the symbol table, as dlvsym looks for.
#include <cuda.h>
#include <dlfcn.h>

namespace {
template <class Function>
Function *next(Function *, const char *name) {
  return reinterpret_cast<Function *>(::dlsym(::dlopen("libcuda.so.1", RTLD_NOW), name));
}
}  // namespace

#define PASS_ON(name, parameters, arguments)                                   \
  extern "C" __attribute__((visibility("default"))) CUresult name parameters { \
    static const auto f = next(&name, #name);                                  \
    return f arguments;                                                        \
  }
PASS_ON(cuInit, (unsigned flags), (flags))
PASS_ON(cuDeviceGet, (CUdevice * out, int ordinal), (out, ordinal))
PASS_ON(cuDevicePrimaryCtxRetain, (CUcontext * out, CUdevice device), (out, device))
PASS_ON(cuCtxSetCurrent, (CUcontext context), (context))
PASS_ON(cuMemAlloc_v2, (CUdeviceptr * out, std::size_t bytes), (out, bytes))
PASS_ON(cuMemFree_v2, (CUdeviceptr at), (at))
PASS_ON(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, std::size_t bytes), (to, from, bytes))
PASS_ON(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, std::size_t bytes), (to, from, bytes))
PASS_ON(cuMemGetInfo_v2, (std::size_t * free, std::size_t *total), (free, total))
