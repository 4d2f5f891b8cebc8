// What the cases of the client `preload_semantics` share: a context, hostcuda's test functions, a table of cases.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/preload/clients/memory_user.h"

namespace client {

template <class Function>
Function *hostcuda(const char *name) {
  return reinterpret_cast<Function *>(::dlsym(RTLD_DEFAULT, name));
}
inline void hold(CUstream s) {
  hostcuda<CUresult(CUstream)>("hostcuda_hold")(s);
}
inline void release(CUstream s) {
  hostcuda<CUresult(CUstream)>("hostcuda_release")(s);
}
inline std::uint64_t calls(const char *name) {
  std::uint64_t n = 0;
  hostcuda<CUresult(const char *, std::uint64_t *)>("hostcuda_calls")(name, &n);
  return n;
}

inline int use_device(int ordinal) {
  CLIENT_CHECK(cuInit(0));
  CUdevice device = -1;
  CLIENT_CHECK(cuDeviceGet(&device, ordinal));
  CUcontext context = nullptr;
  CLIENT_CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CLIENT_CHECK(cuCtxSetCurrent(context));
  return 0;
}

inline CUresult create_context(CUcontext *context, CUdevice device = 0,
                               const char *symbol = "cuCtxCreate_v2") {
  // The headers differ in the parameters of cuCtxCreate.
  return hostcuda<CUresult(CUcontext *, unsigned, CUdevice)>(symbol)(context, 0, device);
}

inline CUdeviceptr block_of(std::size_t bytes) {
  CUdeviceptr at = 0;
  if (const CUresult r = cuMemAlloc(&at, bytes))
    std::fprintf(stderr, "cuMemAlloc: %d\n", static_cast<int>(r));
  return at;
}
inline CUresult create_memory(CUmemGenericAllocationHandle *handle, std::size_t bytes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  return cuMemCreate(handle, bytes, &properties, 0);
}
inline CUstream new_stream() {
  CUstream s = nullptr;
  if (const CUresult r = cuStreamCreate(&s, CU_STREAM_NON_BLOCKING)) {
    std::fprintf(stderr, "cuStreamCreate: %d\n", static_cast<int>(r));
  }
  return s;
}
// Whether all bytes are `value`.
inline bool holds(CUdeviceptr at, std::size_t bytes, unsigned char value) {
  std::vector<unsigned char> got(bytes);
  if (cuMemcpyDtoH(got.data(), at, bytes) != CUDA_SUCCESS) return false;
  for (const unsigned char c : got) {
    if (c != value) return false;
  }
  return true;
}
inline void pause(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

// How a held stream goes on while another call waits for it: says so before it does.
struct late_release {
  explicit late_release(CUstream s)
      : later([this, s] {
          pause(100);
          done = true;
          release(s);
        }) {}
  ~late_release() { later.join(); }
  std::atomic<bool> done{false};
  std::thread later;
};

struct named_case {
  const char *name;
  int (*run)();
};

}  // namespace client
