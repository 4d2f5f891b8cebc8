// What every client does with the driver's functions, however it has found them: allocates, copies there and back,
// frees, and says how many blocks it has had.
#pragma once

#include <cuda.h>

#include <cstdio>
#include <cstring>
#include <vector>

#define CLIENT_FUNCTIONS(X)   \
  X(cuInit)                   \
  X(cuDeviceGet)              \
  X(cuDevicePrimaryCtxRetain) \
  X(cuCtxSetCurrent)          \
  X(cuMemAlloc_v2)            \
  X(cuMemFree_v2)             \
  X(cuMemcpyHtoD_v2)          \
  X(cuMemcpyDtoH_v2)          \
  X(cuMemGetInfo_v2)

// The functions by pointers, as a program that looks them up has them.
struct driver_pointers {
#define CLIENT_MEMBER(f) decltype(&::f) f = nullptr;
  CLIENT_FUNCTIONS(CLIENT_MEMBER)
#undef CLIENT_MEMBER

  // find(name) returns an address; false: one is missing, which stderr says.
  template <class Find>
  bool look_up(Find find) {
    bool all = true;
#define CLIENT_FIND(f)                                  \
  this->f = reinterpret_cast<decltype(&::f)>(find(#f)); \
  if (this->f == nullptr) {                             \
    std::fprintf(stderr, "%s is not found\n", #f);      \
    all = false;                                        \
  }
    CLIENT_FUNCTIONS(CLIENT_FIND)
#undef CLIENT_FIND
    return all;
  }
};

#define CLIENT_CHECK(call)                                                       \
  do {                                                                           \
    const int code_ = static_cast<int>(call);                                    \
    if (code_ != 0) {                                                            \
      std::fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, code_); \
      return 1;                                                                  \
    }                                                                            \
  } while (false)
#define CLIENT_EXPECT(condition)                                                   \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      return 1;                                                                    \
    }                                                                              \
  } while (false)

// Returns 0 where all is as it should be, and prints "blocks N".
inline int use_memory(const driver_pointers &d) {
  CLIENT_CHECK(d.cuInit(0));
  CUdevice device = -1;
  CLIENT_CHECK(d.cuDeviceGet(&device, 0));
  CUcontext context = nullptr;
  CLIENT_CHECK(d.cuDevicePrimaryCtxRetain(&context, device));
  CLIENT_CHECK(d.cuCtxSetCurrent(context));
  std::size_t free_bytes = 0, total = 0;
  CLIENT_CHECK(d.cuMemGetInfo_v2(&free_bytes, &total));
  CLIENT_EXPECT(free_bytes != 0 && free_bytes <= total);
  const std::size_t sizes[] = {1, 700, 64 << 10, 5 << 20};
  std::vector<CUdeviceptr> blocks;
  for (const std::size_t bytes : sizes) {
    CUdeviceptr block = 0;
    CLIENT_CHECK(d.cuMemAlloc_v2(&block, bytes));
    const std::vector<unsigned char> pattern(bytes, static_cast<unsigned char>(blocks.size() + 17));
    CLIENT_CHECK(d.cuMemcpyHtoD_v2(block, pattern.data(), bytes));
    blocks.push_back(block);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    std::vector<unsigned char> got(sizes[i]);
    CLIENT_CHECK(d.cuMemcpyDtoH_v2(got.data(), blocks[i], sizes[i]));
    for (const unsigned char c : got) CLIENT_EXPECT(c == i + 17);
    CLIENT_CHECK(d.cuMemFree_v2(blocks[i]));
  }
  std::printf("blocks %zu\n", blocks.size());
  return 0;
}
