// Another interposer: it counts calls of three of the driver's functions, passes them on, and says the counts at the
// end, where the environment asks for it.
#include <cuda.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {
std::atomic<int> allocations{0}, frees{0}, copies{0};

[[gnu::destructor]] void say() {
  if (const char *const file = std::getenv("WRAP_COUNTS")) {
    if (std::FILE *const to = std::fopen(file, "w")) {
      std::fprintf(to, "%d %d %d\n", allocations.load(), frees.load(), copies.load());
      std::fclose(to);
    }
  }
}
template <class Function>
Function *next(Function *, const char *name) {
#ifdef BY_PROC_ADDRESS
  using look_up =
      CUresult(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
  static const auto find = reinterpret_cast<look_up *>(
      ::dlsym(::dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2"));
  void *address = nullptr;
  const std::string plain = std::string(name).substr(0, std::strlen(name) - 3);
  if (find(plain.c_str(), &address, 12000, 0, nullptr) == CUDA_SUCCESS)
    return reinterpret_cast<Function *>(address);
#endif
  // Where it is preloaded into a program that opens the driver, no object behind it has the function.
  void *found = ::dlsym(RTLD_NEXT, name);
  if (found == nullptr) found = ::dlsym(::dlopen("libcuda.so.1", RTLD_NOW), name);
  return reinterpret_cast<Function *>(found);
}
}  // namespace

extern "C" {
__attribute__((visibility("default"))) CUresult cuMemAlloc_v2(CUdeviceptr *at, std::size_t bytes) {
  static const auto f = next(&cuMemAlloc_v2, "cuMemAlloc_v2");
  ++allocations;
  return f(at, bytes);
}
__attribute__((visibility("default"))) CUresult cuMemFree_v2(CUdeviceptr at) {
  static const auto f = next(&cuMemFree_v2, "cuMemFree_v2");
  ++frees;
  return f(at);
}
__attribute__((visibility("default"))) CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from,
                                                                std::size_t bytes) {
  static const auto f = next(&cuMemcpyHtoD_v2, "cuMemcpyHtoD_v2");
  ++copies;
  return f(to, from, bytes);
}
}
