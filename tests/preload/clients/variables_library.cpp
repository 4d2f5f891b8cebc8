// A loader of the driver's functions in the way of cuew: *variables* with their names, in a library that others are
// linked to. Its own uses of the variables go through slots that the dynamic loader fills by name.
#include <dlfcn.h>

// Not <cuda.h>, which declares functions of these names.
extern "C" {
#define VARIABLE(name) __attribute__((visibility("default"))) void *name = nullptr;
VARIABLE(cuInit)
VARIABLE(cuMemAlloc_v2)
VARIABLE(cuMemFree_v2)

__attribute__((visibility("default"))) int load_variables() {
  if (cuInit != nullptr || cuMemAlloc_v2 != nullptr) return 2;
  void *const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return 3;
  cuInit = ::dlsym(driver, "cuInit");
  cuMemAlloc_v2 = ::dlsym(driver, "cuMemAlloc_v2");
  cuMemFree_v2 = ::dlsym(driver, "cuMemFree_v2");
  return cuInit != nullptr && cuMemAlloc_v2 != nullptr && cuMemFree_v2 != nullptr ? 0 : 4;
}

// As the library sees them.
__attribute__((visibility("default"))) void *variable(int which) {
  return which == 0 ? cuInit : which == 1 ? cuMemAlloc_v2 : cuMemFree_v2;
}
}
